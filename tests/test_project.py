"""The project's own rules: package layers, docstrings and documents."""

import ast
import doctest
import importlib
import importlib.metadata
import math
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from support import tiers

import clearhead
from clearhead.equations import equation_of

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
MODULES = [module.name for module in pkgutil.walk_packages(clearhead.__path__, "clearhead.")]


def test_packages_import_only_lower_packages():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_import_circle_and_no_oversized_folder_file_or_function():
    checker = ROOT / "tools/check_structure.py"
    done = subprocess.run([sys.executable, checker], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    examples = subprocess.run([sys.executable, "-m", "doctest", checker], cwd=ROOT, capture_output=True, text=True)
    assert examples.returncode == 0, examples.stdout


def test_models_do_not_import_inspection():
    for package in ("equations", "layers", "stacks", "models"):
        for path in (ROOT / "src/clearhead" / package).glob("*.py"):
            assert "clearhead.inspection" not in path.read_text(encoding="utf-8"), path


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    options = doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert not result.failed


def test_every_public_name_is_documented_with_an_example():
    for name in clearhead.__all__:
        assert name == "__version__" or ">>>" in getattr(clearhead, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Decoderr'"):
        clearhead.Decoderr  # noqa: B018


def public_definitions(tree):
    """Yield public functions, classes and their methods, without overloads."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_definitions(node)
        overload = any(getattr(mark, "id", "") == "overload" for mark in getattr(node, "decorator_list", []))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and not overload:
            yield node


@pytest.mark.slow
def test_public_functions_and_classes_have_docstrings():
    for path in sorted((ROOT / "src/clearhead").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        overriding = {
            name
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.bases
            for name in inherited(path, node.name)
        }
        for node in public_definitions(tree):
            assert node.name in overriding or ast.get_docstring(node), f"{path}: {node.name}"


def inherited(path, name):
    """Return the methods of a class's bases, which have the docstrings."""
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    kind = getattr(importlib.import_module(module), name)
    return {method for base in kind.__mro__[1:-1] for method in vars(base)}


@pytest.mark.slow
def test_python_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.slow
def test_tutorial_trains_a_translator(tmp_path, monkeypatch):
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "tutorial", "exec"), names)
    assert names["right"] >= 0.9 * len(names["pairs"]) > 40


def test_tutorial_states_the_smallest_loss():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    words = int(re.search(r"pairs, (\d+) words", text)[1])
    smoothed = [0.9 + 0.1 / words, *[0.1 / words] * (words - 1)]
    entropy = -sum(share * math.log(share) for share in smoothed)
    assert f"cannot fall below {entropy:.2f}" in text


def test_paper_document_states_every_equation():
    document = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "src/clearhead/equations").glob("*.py")):
        module = importlib.import_module(f"clearhead.equations.{path.stem}")
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", "") == module.__name__ and equation_of(thing):
                row = next(
                    (line for line in document.replace("\\|", "|").split("\n") if f"| {equation_of(thing)} |" in line),
                    "",
                )
                assert f"equations/{path.name}" in row, f"{path.name}: {name} has no row"
                (test,) = re.findall(r"tests/[\w/]+\.py", row)
                assert re.search(rf"\b{name}\b", (ROOT / test).read_text(encoding="utf-8")), f"{test} has no {name}"
    for test in re.findall(r"tests/[\w/]+\.py", document):
        assert (ROOT / test).is_file(), test
    for source in re.findall(r"(?<!tests/)\b(?:equations|layers|stacks|models)/\w+\.py", document):
        assert (ROOT / "src/clearhead" / source).is_file(), source


def test_layer_docstring_states_the_formula_of_its_equation():
    from clearhead.equations import feedforward, norm, positions
    from clearhead.layers.attention import RotaryEmbedding

    for layer, equation in (
        (clearhead.LayerNorm, norm.layer_norm),
        (clearhead.PositionwiseFeedForward, feedforward.feedforward),
        (clearhead.PositionalEncoding, positions.sinusoids),
        (RotaryEmbedding, positions.rotate),
    ):
        assert equation_of(layer) == equation_of(equation)


OFFLINE = """
import atexit, importlib, os, sys

events = []

def record(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        events.append(f"{event} {arguments}")

def report():
    if events:  # also of a connection whose error was caught
        sys.stderr.write(f"{events}")
        sys.stderr.flush()
        os._exit(1)

sys.addaudithook(record)
atexit.register(report)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


CAUGHT = """
import contextlib, socket
with contextlib.suppress(BaseException): socket.create_connection(("127.0.0.1", 9))
"""


@pytest.mark.slow
def test_no_import_uses_the_network():
    done = subprocess.run([sys.executable, "-c", OFFLINE, *MODULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_network_audit_sees_a_connection():
    done = subprocess.run([sys.executable, "-c", OFFLINE + CAUGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "socket.connect" in done.stderr


def test_versions_agree():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == clearhead.__version__
    assert f"## {clearhead.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def steps(part):
    """Yield every `uses:` of a parsed workflow."""
    if isinstance(part, dict):
        yield from ([part["uses"]] if isinstance(part.get("uses"), str) else [])
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from steps(inner)


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflow_is_pinned_and_has_few_permissions(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job or job["uses"].startswith("./")
    used = [action for action in steps(workflow) if not action.startswith("./")]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"pin {action} to a commit"
        assert re.search(rf"{action} # v\d+\.\d+\.\d+$", text, re.MULTILINE), f"{action} has no version comment"


def test_action_has_one_version_in_all_workflows():
    versions = {}
    for path in (GITHUB / "workflows").glob("*.yml"):
        for action in steps(yaml.safe_load(path.read_text(encoding="utf-8"))):
            name, _, version = action.partition("@")
            assert versions.setdefault(name, version) == version, f"{path.name}: {name}"


def test_uploads_of_a_release_have_different_names():
    names = []
    for name in ("release", "checks"):  # a release runs the checks in the same run
        workflow = yaml.safe_load((GITHUB / f"workflows/{name}.yml").read_text(encoding="utf-8"))
        uploads = [
            step
            for job in workflow["jobs"].values()
            for step in job.get("steps", ())
            if "upload-artifact" in step.get("uses", "")
        ]
        names += [step["with"]["name"] for step in uploads]
    assert len(names) >= 3
    assert len(names) == len({*names})


def test_workflows_audit_list_components_and_build_the_image():
    checks = yaml.safe_load((GITHUB / "workflows/checks.yml").read_text(encoding="utf-8"))["jobs"]
    commands = {name: [step.get("run", "") for step in job["steps"]] for name, job in checks.items()}
    assert "make audit" in commands["supply-chain"]
    assert "docker build --tag clearhead ." in commands["image"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\naudit:")[2].partition("\n\n")[0]
    assert all(tool in recipe for tool in ("pip-audit", "npm audit", "cyclonedx-py environment"))
    assert "cyclonedx-py environment" in (GITHUB / "workflows/release.yml").read_text(encoding="utf-8")
    assert {*checks["tests"]["strategy"]["matrix"]["os"]} == {"ubuntu-latest", "macos-latest", "windows-latest"}


@pytest.mark.slow
def test_pinned_versions_install_on_all_supported_pythons():
    """The first release of each minor version is the strictest."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    checked = 0
    for distribution in importlib.metadata.distributions():
        pin = pins.get(distribution.name, pins.get(distribution.name.replace("_", "-")))
        required = distribution.metadata["Requires-Python"]
        if pin is None or required is None or distribution.version.partition("+")[0] != pin:
            continue
        checked += 1
        for python in ("3.11.0", "3.12.0", "3.13.0"):
            assert SpecifierSet(required).contains(python), f"{distribution.name} {pin} needs Python {required}"
    assert checked > 0.8 * len(pins)


def test_issue_templates_and_citation_parse():
    for path in (GITHUB / "dependabot.yml", *(GITHUB / "ISSUE_TEMPLATE").glob("*.yml")):
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "Clearhead"
    assert citation["authors"] == project["authors"]
    assert citation["version"] == clearhead.__version__
    assert citation["license"] == project["license"].partition(" AND ")[0]
    assert citation["repository-code"] == project["urls"]["Repository"]


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE).group(1).split()
    assert ".DEFAULT_GOAL := help" in text
    assert set(targets) == set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    for target in targets:
        assert re.search(rf"^{target}:.*## \w", text, re.MULTILINE), f"{target} has no help: add a ## comment"


def test_pre_commit_uses_the_active_environment():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert ".venv" not in text
    assert yaml.safe_load(text)["repos"]


@pytest.mark.parametrize(
    ("code", "fixtures", "expected"),
    [
        ("def test(): pass", [], []),
        ("import onnxruntime\ndef test(): pass", [], ["parity"]),
        ("def test():\n    import transformers.models", [], ["parity"]),
        ("def test(): pytest.importorskip('ctranslate2.converters')", [], ["parity"]),
        ("def other():\n    import transformers\ndef test(): pass", [], []),
        ("def helper():\n    import transformers\ndef test(): helper()", [], ["parity"]),
        ("def layer():\n    return nn.MultiheadAttention(4, 2)\ndef test(layer): pass", ["layer"], ["parity"]),
        ("SQUARE = nn.Transformer.generate_square_subsequent_mask\ndef test(): SQUARE(3)", [], ["parity"]),
        ("def test(pair): theirs, ours = pair", ["pair"], ["parity"]),
        ("def test(opened): pass", ["opened", "browser"], ["browser"]),
        ("import transformers\ndef test(browser): pass", ["browser"], ["parity", "browser"]),
    ],
)
def test_tier_of_a_test_follows_from_its_source(tmp_path, code, fixtures, expected):
    path = tmp_path / "test_module.py"
    path.write_text(code, encoding="utf-8")
    assert tiers.of(SimpleNamespace(path=path, originalname="test", cls=None, fixturenames=fixtures)) == expected


def test_modules_that_need_linux_or_macos_are_found():
    assert tiers.needs_posix(ROOT / "tests/support/once.py")
    assert not tiers.needs_posix(ROOT / "tests/support/tiers.py")
    assert not tiers.needs_posix(Path(__file__))
