"""The real command line in a process of its own.

`clearhead` forks it from a Python that has imported the libraries, which takes most of a short command's time; `started`
starts a Python, as a shell does, and is what each verb is tried with at least once.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from support import forks

COMMAND = Path(sys.executable).with_name("clearhead")


def clearhead(*arguments, stdin=b"", cwd=None, hook=None):
    """Runs `clearhead`, after a hook in its process, and gives (status, standard output, standard error)."""
    with tempfile.TemporaryDirectory() as place:
        said, given = Path(place, "said"), Path(place, "given")
        given.write_bytes(stdin)
        status, err = forks.run(*arguments, said=said, stdin=given, cwd=cwd, hook=hook)
        return status, Path(f"{said}.out").read_bytes().decode(), err


def started(*arguments, stdin=b"", cwd=None, preexec_fn=None):
    """As `clearhead`, from a new Python."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], input=stdin, capture_output=True, check=False, cwd=cwd, preexec_fn=preexec_fn
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refused(*arguments, run=clearhead, **options):
    """Runs `clearhead`, which must fail with one line on standard error; gives that line."""
    status, out, err = run(*arguments, **options)
    assert status == 1, (status, out, err)
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("clearhead: error: ")
    return err
