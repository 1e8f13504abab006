"""Run the real command line in a separate process.

`clearhead` forks a Python process that has imported the libraries, because the imports dominate the time of a short
command. `started` starts a new Python process, as a shell does; at least one test of each command uses it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from support import forks

COMMAND = Path(sys.executable).with_name("clearhead")


def clearhead(*arguments, stdin=b"", cwd=None, hook=None):
    """Run `clearhead`, after a hook in its process, and return (status, standard output, standard error)."""
    with tempfile.TemporaryDirectory() as workspace:
        log, input_file = Path(workspace, "said"), Path(workspace, "given")
        input_file.write_bytes(stdin)
        status, err = forks.run(*arguments, log=log, stdin=input_file, cwd=cwd, hook=hook)
        return status, Path(f"{log}.out").read_bytes().decode(), err


def started(*arguments, stdin=b"", cwd=None, preexec_fn=None):
    """Run `clearhead` in a new Python process."""
    completed = subprocess.run(
        [COMMAND, *map(str, arguments)], input=stdin, capture_output=True, check=False, cwd=cwd, preexec_fn=preexec_fn
    )
    return completed.returncode, completed.stdout.decode(), completed.stderr.decode()


def refused(*arguments, run=clearhead, **options):
    """Run `clearhead`, which must fail with one line on standard error, and return that line."""
    status, out, err = run(*arguments, **options)
    assert status == 1, (status, out, err)
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("clearhead: error: ")
    return err
