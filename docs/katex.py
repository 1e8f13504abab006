"""MkDocs hook: install KaTeX from npm into docs/web, and copy it into the site.

The site loads nothing from other hosts, so its equations are rendered without a network connection.
"""

import json
import shutil
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

WEB = Path(__file__).parent / "web"
KATEX = Path("node_modules/katex")
FILES = ("katex.min.css", "katex.min.js", "contrib/auto-render.min.js", "fonts/*.woff2")


def is_installed(web):
    """Return whether the version of the lock file is installed."""
    package = web / KATEX / "package.json"
    if not package.is_file():
        return False
    locked = json.loads((web / "package-lock.json").read_text(encoding="utf-8"))["packages"][KATEX.as_posix()]
    return json.loads(package.read_text(encoding="utf-8"))["version"] == locked["version"]


def install(web):
    """Install the version of the lock file."""
    npm = shutil.which("npm")
    if npm is None:
        raise PluginError(
            "npm was not found. The site needs it once, to install KaTeX for the equations. "
            "Install Node.js, which contains npm, and build the site again."
        )
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=web, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PluginError(f"`npm ci` failed in {web}:\n{done.stderr.strip()}")


def on_config(config):
    """Install KaTeX if it is missing or outdated."""
    if not is_installed(WEB):
        install(WEB)
    return config


def on_files(files, config):
    """Add the scripts, the stylesheet and the fonts to the site."""
    folder = WEB / KATEX / "dist"
    for pattern in FILES:
        for path in sorted(folder.glob(pattern)):
            name = f"assets/katex/{path.relative_to(folder).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
