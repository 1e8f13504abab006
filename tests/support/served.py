"""Run the real server in a separate process on a free port."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from support.command import COMMAND

SCRIPT = """
import json, sys
{before}
from clearhead.serve.server import serve
from clearhead.serve.settings import Settings
settings, port = json.loads(sys.argv[1])
serve(Settings(**settings), "127.0.0.1", port)
"""


class Server:
    """A running server.

    Args:
        process: its process.
        log: file of its standard error.
    """

    def __init__(self, process, log):
        self.process, self._log = process, log
        self.address = ""

    def log_text(self):
        """Return its standard error so far."""
        return Path(self._log.name).read_text(encoding="utf-8")

    def wait_until_listening(self):
        """Wait until the server is listening."""
        match = self._wait_for(lambda: re.search(r"listening on (http://\S+)", self.log_text()))
        self.address = match[1]

    def wait_until_ready(self):
        """Wait until the models are loaded."""
        self._wait_for(lambda: httpx.get(f"{self.address}/health/ready").status_code == 200)

    def stop(self, sent=signal.SIGTERM, seconds=30):
        """Send a signal and return the exit status and the seconds until the process ended."""
        start = time.monotonic()
        self.process.send_signal(sent)
        return self.process.wait(seconds), time.monotonic() - start

    def peak_memory(self):
        """Return its peak memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))

    def _wait_for(self, condition):
        stop = time.monotonic() + 120
        while not (match := condition()):
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < stop, self.log_text()
            time.sleep(0.05)
        return match


@contextlib.contextmanager
def command(*arguments, ready=True):
    """Run `clearhead serve` in a block; yields the `Server`."""
    with _running([COMMAND, "serve", "--port", "0", *map(str, arguments)], ready) as server:
        yield server


@contextlib.contextmanager
def server(models, *, ready=True, before="", port=0, **settings):
    """Run a server with any `Settings` in a block; yields the `Server`.

    Args:
        models: folder of each model by name.
        ready: whether to wait until the models are loaded.
        before: Python code to run in the process first, for fault injection.
        port: port; 0 for any free port.
        settings: arguments of `Settings`.
    """
    settings = {"models": [f"{name}={folder}" for name, folder in models.items()], "precision": "float32", **settings}
    arguments = json.dumps([settings, port], default=str)
    with _running([sys.executable, "-c", SCRIPT.format(before=before), arguments], ready) as one:
        yield one


@contextlib.contextmanager
def _running(command, ready):
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        one = Server(process, log)
        try:
            one.wait_until_listening()
            if ready:
                one.wait_until_ready()
            yield one
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
            process.kill()
            process.wait()


def metric(address, name, **labels):
    """Return the value of a metric of the server; 0 if it has no value yet."""
    label_text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    name_and_labels = f"clearhead_{name}{{{label_text}}}" if labels else f"clearhead_{name}"
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == name_and_labels), 0.0)


def wait_until(condition, seconds=15):
    """Wait until a condition is true."""
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "the condition did not become true"
        time.sleep(0.02)


def run_failing(*arguments):
    """Run `clearhead serve` with an error at startup and return the completed process."""
    command = [COMMAND, "serve", "--port", "0", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def connect(address, source="127.0.0.1"):
    """Connect a socket to a server from a local address."""
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=10, source_address=(source, 0))


def head(path, *headers, method="POST", version="1.1"):
    """Return the bytes of a request up to its body."""
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: x", *headers, "", ""]).encode()


def request(path, body, *headers, version="1.1"):
    """Return the bytes of a request."""
    sent = json.dumps(body).encode()
    typed = ("content-type: application/json", f"content-length: {len(sent)}")
    return head(path, *typed, *headers, version=version) + sent


def answer(one):
    """Receive the next response of a socket: its status, headers and body."""
    response = http.client.HTTPResponse(one)
    response.begin()
    return response.status, response.headers, response.read()


def received(one, seconds=60):
    """Receive all bytes until the server closes the connection."""
    one.settimeout(seconds)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(2**16):
            parts.append(part)
    return b"".join(parts)
