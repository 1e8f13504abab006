"""The server in a separate process, with samples of its memory, descriptors and threads."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("clearhead"))
DRAIN_SECONDS = 600
"""Enough for a full queue on a slow machine: no accepted request should be canceled."""


class Server:
    """`clearhead serve` on a free port, in float32.

    Args:
        folder: folder for its log and keys.
        models: values of `--model`.
        options: additional options.
        keys: API keys.
    """

    def __init__(self, folder, models, options, keys):
        self._log, key_file = folder / "server.log", folder / "keys.txt"
        key_file.write_text("\n".join(keys) + "\n", encoding="utf-8")
        command = [COMMAND, "serve", "--port", "0", "--precision", "float32", "--api-key-file", str(key_file)]
        command += ["--drain-seconds", str(DRAIN_SECONDS), *options]
        command += [part for model in models for part in ("--model", model)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    @property
    def log(self):
        """Its log so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_until_loaded(self, models):
        """Wait until all models are loaded, and return host and port."""
        while self.log.count(" loaded ") < models:
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not start: {self.log}")
            time.sleep(0.2)
        host, port = re.search(r"listening on http://([\d.]+):(\d+)", self.log).groups()
        return host, int(port)

    def stop(self):
        """Send SIGTERM; return the exit status and the seconds until the end."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(DRAIN_SECONDS + 30)
        return self.process.poll(), time.monotonic() - start

    def sample(self):
        """Return resident and proportional memory in MiB, and the count of open descriptors and of threads."""
        folder = Path(f"/proc/{self.process.pid}")
        status, maps = ((folder / name).read_text() for name in ("status", "smaps_rollup"))
        return {
            "rss": round(_number(status, "VmRSS") / 1024, 1),
            "pss": round(_number(maps, "Pss") / 1024, 1),
            "descriptors": len(os.listdir(folder / "fd")),
            "threads": _number(status, "Threads"),
        }


def _number(text, name):
    return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1])
