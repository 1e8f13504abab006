"""MkDocs hooks: add the notebooks, link to repository files on GitHub, and load nothing from other hosts."""

import logging
import re
import tomllib
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from typesetting import typeset_tables

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger("mkdocs.hooks.clearhead")  # with --strict, a warning fails the build


def on_config(config):
    """Read the repository URL from pyproject.toml."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    config.repo_url, config.repo_name = urls["Repository"], "GitHub"
    return config


@event_priority(100)  # before the plugin that converts the notebooks
def on_files(files, config):
    """Add the notebooks to the site."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File(f"notebooks/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown, page, config, files):
    """Replace links to repository files, which the site does not contain, with links to GitHub."""

    def replace_link(match):
        path, _, anchor = match[1].partition("#")
        if not (ROOT / path).exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        if path.startswith("notebooks/") and path.endswith(".ipynb"):
            return f"]({'../' * page.file.src_uri.count('/')}{path})"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{path}{'#' * bool(anchor)}{anchor})"

    linked = re.sub(
        r"\]\((?:\.\./)+((?:src|tests|recipes|notebooks|examples|benchmarks|[A-Z]+\.md)[^)]*)\)", replace_link, markdown
    )
    return typeset_tables(linked)


def on_page_content(html, page, config, files):
    """Remove scripts and images that the page of a notebook would load from other hosts."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    html = re.sub(r"<script[^>]*>(?:(?!</script>).)*</script>", remove_foreign_script, html, flags=re.DOTALL)
    return re.sub(r'<img alt="([^"]*)" src="https://[^>]*>', r"\1", html)


def remove_foreign_script(match):
    """Return the script, or an empty string if it loads or configures a library from another host."""
    return "" if re.search(r"mathjax|mermaid|requirejs", match[0], re.IGNORECASE) else match[0]


def on_post_page(output, page, config):
    """Keep the theme from asking GitHub's API for the number of stars."""
    return output.replace(' data-md-component="source"', "")
