"""Every command and Python block of the README and the documentation runs, and prints what the page shows.

A line `<!-- not run: reason -->` above a block excludes it. A text block directly after a Python block is its output.
In an output, `...` stands for anything.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
import tomllib
import urllib.request
from pathlib import Path

import jaxtyping
import pyarrow.parquet
import pytest
from support.command import clearhead
from support.models import families, folders
from support.models.seq2seq import make

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for folder in ("docs", "docs/guides") for path in (ROOT / folder).glob("*.md")),
]
BLOCK = re.compile(
    r"^(<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>[a-z]+)\n(?P<code>.*?)^```$"
    r"(?P<output>\n\n```text\n(?P<shown>.*?)^```$)?",
    re.M | re.S,
)
"""Pages that are slow without such a command."""
QUOTED = re.compile(r"""'[^']*'|"[^"$`]*\"""")
SHELL = re.compile(r"[|<>&;$*?`~=(]")
"""Characters that have a meaning in a shell, outside of quotes."""
ARRANGED = {"pip", "make", "git", "docker", ".venv/bin/python"}
"""Commands that install, build or test the project: only their targets, extras and paths are checked."""


def blocks(page):
    """Yield (number, kind, code, shown) of the blocks of a page that run; shown is the text block below, or None."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for number, match in enumerate(BLOCK.finditer(text), start=1):
        if match["reason"] is None and match["kind"] in ("console", "python"):
            yield number, match["kind"], match["code"], match["shown"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, tiny_bert):
    """A folder with the files and models that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "texts.txt").write_text("How do I reset my password?\nI forgot my login.\nWhere is my parcel?\n")
    (folder / "lines.txt").write_text("Good morning!\nWhere can I buy a ticket?\n")
    (folder / "report.txt").write_text("The bridge was closed by the mayor. The storm had damaged it.\n")
    (folder / "labeled.tsv").write_text("text\tlabel\nI forgot my login.\tLABEL_0\nWhere is my parcel?\tLABEL_1\n")
    (folder / "table.csv").write_text('id,title,body\n1,Greeting,"Hello, world"\n2,Morning,Good morning\n')
    (folder / "shards").mkdir()
    rows = pyarrow.table({"id": [1, 2], "body": ["Hello, world", "Good morning"]})
    for path in (folder / "table.parquet", folder / "shards" / "a.parquet", folder / "shards" / "b.parquet"):
        pyarrow.parquet.write_table(rows, path)
    models = folder / "path" / "to"
    models.mkdir(parents=True)
    (models / "bert").symlink_to(tiny_bert)
    (models / "model").symlink_to(tiny_bert)
    families.make("bert", models / "classifier", "ForSequenceClassification")
    families.make("roberta", models / "roberta-squad", "ForQuestionAnswering")
    for name in ("opus-mt-en-de", "bart-large-cnn", "nllb"):
        (models / name).mkdir()
    folders.plain("nllb", models / "nllb")
    folders.marian(models / "opus-mt-en-de")
    folders.bart(models / "bart-large-cnn")
    make("t5", models / "t5")
    return folder


def commands(code):
    """Yield each command of a console block with the output that the page shows."""
    command, output = None, []
    for line in code.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, output
            command, output = line[2:], []
        elif command is not None and command.endswith("\\") and not output:
            command = command[:-1] + line.strip()
        else:
            output.append(line)
    if command is not None:
        yield command, output


def matches(shown, printed):
    """Return whether a text is what a page shows, where `...` stands for anything."""
    pattern = r".*".join(re.escape(part.strip()) for part in re.split(r"\.\.\.|…", "\n".join(shown).strip()))
    spaced = re.sub(r"(\\\s|\s)+", r"\\s+", pattern)
    return re.fullmatch(spaced, printed.strip(), re.DOTALL) is not None


def check_arranged(words):
    """Check the targets of make, the extras of pip and the paths of tests."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        assert not word.startswith("tests/") or (ROOT / word).exists(), word
        for name in re.findall(r"^\.\[(.*)\]$", word):
            assert set(name.split(",")) <= set(extras), word


def run_command(command, words, folder, environment):
    """Run a command in a shell, or in a forked process if it does not use the shell: the imports take most of its time."""
    if words[0] == "clearhead" and not SHELL.search(QUOTED.sub("", command)):
        return clearhead(*words[1:], cwd=folder)
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def run_console(code, folder):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    environment["OMP_NUM_THREADS"] = "1"
    servers = []
    try:
        for command, shown in commands(code):
            words = shlex.split(command, comments=True)
            assert words, command
            if words[0] in ARRANGED:
                check_arranged(words)
            elif words[-1] == "&":
                servers.append(subprocess.Popen(words[:-1], cwd=folder, env=environment, stderr=subprocess.DEVNULL))
                wait_for("http://localhost:8080/health/ready")
            else:
                status, out, err = run_command(command, words, folder, environment)
                assert status == 0, f"{command}\n{err}"
                assert not shown or matches(shown, out) or matches(shown, out + err), (
                    f"{command}\nprints:\n{out}{err}\nthe page shows:\n" + "\n".join(shown)
                )
    finally:
        for server in servers:
            server.terminate()
            server.wait(60)


def wait_for(address):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=1)
            return
        time.sleep(0.2)
    raise AssertionError(f"{address} does not answer")


@contextlib.contextmanager
def shape_checks_off():
    """Run the library as its users do: torch.compile cannot compile the shape checks of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def run_python(code, names, page, output):
    """Run a block; the comments after `print(...)` are its output, or the text block below it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), shape_checks_off():
        exec(compile(textwrap.dedent(code), page, "exec"), names)
    if output is not None:
        assert matches(output.splitlines(), printed.getvalue()), f"{page} prints:\n{printed.getvalue()}"
    shown = [line for match in re.finditer(r"^print\(.*?\)  # (.*)$", code, re.MULTILINE) for line in [match[1]]]
    if shown and len(shown) == len(re.findall(r"^print\(", code, re.MULTILINE)):
        assert matches(shown, printed.getvalue()), f"{page} prints:\n{printed.getvalue()}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_does_what_it_shows(page, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("COLUMNS", "120")
    shutil.rmtree(workspace / "runs", ignore_errors=True)  # several pages train the same recipe
    names = {}
    for number, kind, code, shown in blocks(page):
        try:
            run_console(code, workspace) if kind == "console" else run_python(code, names, page, shown)
        except Exception as error:
            error.add_note(f"block {number} of {page}:\n{code}")
            raise


def test_blocks_have_a_known_kind():
    """A block that is neither run nor marked is a mistake."""
    for page in PAGES:
        for match in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
            assert match["kind"] in (
                "console",
                "python",
                "text",
                "yaml",
                "json",
                "javascript",
                "nginx",
                "dockerfile",
                "ini",
            ), page


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a 1.5 s"], "a 1.5 s\n", True),
        (["a ... s"], "a 1.5 s", True),
        (["a", "..."], "a\nb\nc", True),
        (["a  b"], "a b", True),
        (["a"], "b", False),
        (["a"], "a b", False),
    ],
)
def test_output_is_compared_with_wildcards(shown, printed, same):
    assert matches(shown, printed) == same
