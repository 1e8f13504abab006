"""MkDocs hook: export the bundled translator as a web page into the folder `explorer` of the site.

The page is the site's front door. It is built with the site, and is not part of the repository.
"""

import runpy
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from clearhead.export.web.export import DISK_FOLDER, export_web
from clearhead.io.hub import TRANSLATOR

BUILD = Path(__file__).parent.parent / "web" / "build.py"
FOLDER = Path(__file__).parent / "web" / "explorer"
"""Export of the last build."""


def on_config(config):
    """Export the translator."""
    reason = runpy.run_path(str(BUILD))["build"]()
    if reason is not None:
        raise PluginError(f"The explorer cannot be built: {reason}. Install Node.js, which contains npm.")
    export_web(TRANSLATOR, FOLDER)
    return config


def on_files(files, config):
    """Add the page, without the copies for a page that is opened from the disk."""
    for path in sorted(FOLDER.rglob("*")):
        name = path.relative_to(FOLDER)
        if path.is_file() and name.parts[0] != DISK_FOLDER:
            files.append(File.generated(config, f"explorer/{name.as_posix()}", abs_src_path=str(path)))
    return files
