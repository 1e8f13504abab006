"""The real server, as a process of its own on a free port."""

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
    """A server's process.

    Args:
        process: it.
        log: the file of its standard error.
    """

    def __init__(self, process, log):
        self.process, self._log = process, log
        self.address = ""

    def log_text(self):
        """What it has written to standard error so far."""
        return Path(self._log.name).read_text(encoding="utf-8")

    def wait_until_listening(self):
        """Waits until it listens."""
        found = self._wait_for(lambda: re.search(r"listening on (http://\S+)", self.log_text()))
        self.address = found[1]

    def wait_until_ready(self):
        """Waits until its models are loaded."""
        self._wait_for(lambda: httpx.get(f"{self.address}/health/ready").status_code == 200)

    def stop(self, sent=signal.SIGTERM, seconds=30):
        """Sends it a signal; gives its status and the seconds until it ended."""
        start = time.monotonic()
        self.process.send_signal(sent)
        return self.process.wait(seconds), time.monotonic() - start

    def peak_memory(self):
        """The most MiB that it held so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))

    def _wait_for(self, condition):
        stop = time.monotonic() + 120
        while not (found := condition()):
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < stop, self.log_text()
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def command(*arguments, ready=True):
    """Starts `clearhead serve`, and stops it in the end; gives the `Server`."""
    with _running([COMMAND, "serve", "--port", "0", *map(str, arguments)], ready) as server:
        yield server


@contextlib.contextmanager
def server(models, *, ready=True, before="", port=0, **settings):
    """Starts a server with settings that the command does not offer; gives the `Server`.

    Args:
        models: folders by their names.
        ready: whether to wait until the models are loaded.
        before: Python that runs in the process first, to plant a fault.
        port: where; a free one by default.
        settings: of `Settings`.
    """
    settings = {"models": [f"{name}={folder}" for name, folder in models.items()], "precision": "float32", **settings}
    given = json.dumps([settings, port], default=str)
    with _running([sys.executable, "-c", SCRIPT.format(before=before), given], ready) as one:
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
    """The value of one of the server's metrics; 0 where it has none yet."""
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    wanted = f"clearhead_{name}{{{told}}}" if labels else f"clearhead_{name}"
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == wanted), 0.0)


def wait_until(condition, seconds=15):
    """Waits until something holds."""
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "it did not come to pass"
        time.sleep(0.02)


def run_failing(*arguments):
    """Runs `clearhead serve`, which must end by itself; gives what subprocess.run gives."""
    command = [COMMAND, "serve", "--port", "0", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def connect(address, source="127.0.0.1"):
    """A socket to a server, from an address of this machine."""
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=10, source_address=(source, 0))


def head(path, *headers, method="POST", version="1.1"):
    """The bytes of a request up to its body."""
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: x", *headers, "", ""]).encode()


def request(path, body, *headers, version="1.1"):
    """The bytes of a request."""
    sent = json.dumps(body).encode()
    typed = ("content-type: application/json", f"content-length: {len(sent)}")
    return head(path, *typed, *headers, version=version) + sent


def answer(one):
    """The status, headers and body of the next answer that a socket receives."""
    response = http.client.HTTPResponse(one)
    response.begin()
    return response.status, response.headers, response.read()


def received(one, seconds=60):
    """All bytes that a socket receives until the server closes the connection."""
    one.settimeout(seconds)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(2**16):
            parts.append(part)
    return b"".join(parts)
