"""`clearhead explore` serves an exported page on this machine."""

import re
import signal
import socket
import struct
import subprocess
import urllib.error
import urllib.request

import pytest
from support.command import COMMAND, refused


@pytest.mark.slow
def test_serves_an_export_until_it_is_interrupted(tiny):
    process = subprocess.Popen(
        [COMMAND, "explore", str(tiny / "page"), "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    line = process.stderr.readline()
    address = re.fullmatch(r"(http://127\.0\.0\.1:\d+/) \(Ctrl-C ends the command\)\n", line)[1]
    with urllib.request.urlopen(address) as response:
        assert b"A Transformer in your browser" in response.read()
        assert response.headers["Cache-Control"] == "no-cache"
    with urllib.request.urlopen(f"{address}clearhead.js") as response:
        assert response.headers["Content-Type"] == "text/javascript"
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    with socket.create_connection((host, int(port))) as early:  # a browser that goes away is not an error
        early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        early.sendall(b"GET /clearhead.js HTTP/1.1\r\n")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}../model/config.json")
    assert f"port {port} cannot be used" in refused("explore", tiny / "page", "--port", port)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stdout.read() + process.stderr.read() == ""
