"""Build the documentation site, and read what its pages load and link to."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOADING = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
CSS_URL = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")


def build(folder):
    """Build the site with the command of `make docs`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    options = re.search(r"^\t\$\(BIN\)/mkdocs (build .*)$", makefile, re.MULTILINE)[1].split()
    command = [sys.executable, "-m", "mkdocs", *options, "--site-dir", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Page(HTMLParser):
    """The addresses in a page: `loads` what the browser fetches, `links` what a reader can follow, and `anchors`."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], set()
        self.in_style = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.in_style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag in LOADING and LOADING[tag] in values:
            self.loads.append(values[LOADING[tag]])
        if "srcset" in values:
            self.loads += [part.split()[0] for part in values["srcset"].split(",")]
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += css_addresses(values.get("style", ""))

    def handle_data(self, data):
        if self.in_style:
            self.loads += css_addresses(data)


def css_addresses(text):
    """Return the addresses that a stylesheet loads."""
    return [first or second for first, second in CSS_URL.findall(text)]


def is_foreign(address):
    """Return whether an address is on another host."""
    return re.match(r"(?:[a-z][a-z+.-]*:)?//", address) is not None
