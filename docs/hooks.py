"""MkDocs hooks: add the notebooks, and link to repository files on GitHub."""

import re
import tomllib
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent


def on_config(config):
    """Read the repository URL from pyproject.toml."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    config.repo_url, config.repo_name = urls["Repository"], "GitHub"
    return config


@event_priority(100)  # before the plugin that runs the notebooks
def on_files(files, config):
    """Add the notebooks to the site."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File(f"notebooks/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown, page, config, files):
    """Replace links to repository files, which the site does not contain, with links to GitHub."""

    def replace_link(match):
        path = match[1]
        if path.startswith("notebooks/") and path.endswith(".ipynb"):
            return f"]({path})"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{path})"

    return re.sub(
        r"\]\((?:\.\./)+((?:src|tests|recipes|notebooks|examples|benchmarks|[A-Z]+\.md)[^)]*)\)", replace_link, markdown
    )
