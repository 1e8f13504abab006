"""Links of Markdown files and notebooks to files of the repository lead to a file and a heading that exist."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
FILES = [path for path in FILES if "node_modules" not in path.parts]
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def markdown(path):
    """Return the Markdown of a file, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", lambda match: "x" * bool(match[1] is None), text, flags=re.M | re.S)


def anchors(path):
    """Return the anchors of a file's headings, as GitHub and MkDocs make them, and those of its API entries."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    entries = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    return set(entries) | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(path):
    """Yield the relative links of a file that lead nowhere."""
    for address in LINK.findall(markdown(path)):
        if re.match(r"[a-z]+:|(\.\./){2}security/", address):  # the last is a page of GitHub
            continue
        name, _, anchor = address.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield address


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(path):
    assert list(broken(path)) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A title\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-title) [b](other.md#no) [![c](no.png)](other.md) [d](https://x.org) `[e](no.md)`\n"
        "```text\n[f](no.md)\n```\n[g](#here)\n# Here\n",
        encoding="utf-8",
    )
    assert list(broken(page)) == ["other.md#no"]
