"""The real server, as a process of its own on a free port."""

import contextlib
import signal
import socket
import subprocess
import time

import httpx

from support.command import COMMAND


@contextlib.contextmanager
def server(*arguments, ready=True):
    """Starts `clearhead serve`, and stops it in the end; gives its address and process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", str(port), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
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


def wait_until_ready(address, process):
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health/ready").status_code == 200:
                return
        if process.poll() is not None:
            raise AssertionError(process.stderr.read().decode())
        time.sleep(0.1)
    raise AssertionError("the server did not become ready")
