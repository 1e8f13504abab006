"""The real command line, as a subprocess; and its main function, without the start of a Python for each case."""

import contextlib
import io
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


def inside(*arguments):
    """Calls `clearhead`'s main function here and gives (status, standard output, standard error).

    For many cases of one command, of which the first has run as a subprocess. Warnings go to pytest's log.
    """
    from clearhead.cli.main import main

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    status = 0
    try:
        sys.argv = ["clearhead", *map(str, arguments)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        status = stop.code or 0
    finally:
        sys.argv = before
    return status, out.getvalue(), err.getvalue()


def refused_inside(*arguments):
    """As `refused`, by `inside`."""
    status, out, err = inside(*arguments)
    assert (status, out, err.count("\n")) == (1, "", 1), (status, out, err)
    assert err.startswith("clearhead: error: ")
    return err
