"""The real command line, as a subprocess."""

import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("clearhead")


def clearhead(*arguments, stdin=b"", cwd=None, preexec_fn=None):
    """Runs `clearhead` and gives (status, standard output, standard error)."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], input=stdin, capture_output=True, check=False, cwd=cwd, preexec_fn=preexec_fn
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refused(*arguments, **options):
    """Runs `clearhead`, which must fail with one line on standard error; gives that line."""
    status, out, err = clearhead(*arguments, **options)
    assert status == 1, (status, out, err)
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("clearhead: error: ")
    return err
