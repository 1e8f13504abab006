"""The real server, as a process of its own on a free port."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

import httpx

from support.command import COMMAND


@contextlib.contextmanager
def server(*arguments, ready=True, before="", port=None):
    """Starts `clearhead serve`, and stops it in the end; gives its address and process.

    Args:
        arguments: of the command.
        ready: whether to wait until the models are loaded.
        before: Python that runs in the process first, to shorten times or to plant a fault.
        port: where; a free one by default.
    """
    port = port or free_port()
    given = ["serve", "--port", str(port), *map(str, arguments)]
    script = f"import sys\n{before}\nfrom clearhead.cli.main import main\nsys.argv[0] = 'clearhead'\nmain()"
    command = [sys.executable, "-c", script, *given] if before else [COMMAND, *given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"
    try:
        if ready:
            wait_until_ready(address, process)
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        process.kill()
        process.communicate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def metric(address, name, **labels):
    """The value of one of the server's metrics; 0 where it has none yet."""
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    wanted = f"clearhead_{name}{{{told}}}" if labels else f"clearhead_{name}"
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == wanted), 0.0)


def wait_until_ready(address, process):
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health/ready").status_code == 200:
                return
        if process.poll() is not None:
            raise AssertionError(process.stderr.read().decode())
        time.sleep(0.1)
    raise AssertionError("the server did not become ready")
