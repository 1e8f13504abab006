"""Find the tier of a test, and the tests that cannot run on Windows, from the source of the test's module.

A test belongs to one or more tiers:

- parity: its module imports a reference library at the top, or the test uses one through the module's own functions,
  fixtures and constants. torch.nn's Transformer layers and the name `theirs` count as a reference.
- browser: it uses the `browser` fixture or playwright.
- slow: it has the marker `slow`, which is set by hand.
- unit: none of these.

A marker that is set by hand adds a tier.
"""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIBRARIES = {"transformers", "sentence_transformers", "ctranslate2", "onnxruntime"}
LAYERS = {
    "MultiheadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
}
POSIX = {"fcntl", "resource"}
SHARED = {"support", "fuzz", "faults"}
"""Packages of the tests that other tests import."""


@cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(node):
    """Yield the modules that a piece of code imports, also by `pytest.importorskip`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            yield part.module or ""
            yield from (f"{part.module}.{alias.name}" for alias in part.names)
        elif isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "importorskip" and part.args:
            yield getattr(part.args[0], "value", "")


def _packages(node):
    return {name.partition(".")[0] for name in _imports(node)}


def _names(node):
    """Return the names and parameters that a piece of code uses; a parameter can be a fixture."""
    parts = list(ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name)} | {
        part.arg for part in parts if isinstance(part, ast.arg)
    }


def _attributes(node):
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


@cache
def _definitions(path):
    """Return the top-level functions, classes and constants of a module: name, packages, attributes and names used."""
    found = []
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = [node.name]
        elif isinstance(node, ast.Assign):
            own = [name for target in node.targets for name in _names(target)]
        else:
            continue
        used = _packages(node), _attributes(node), _names(node)
        found += [(name, *used) for name in own]
    return found


@cache
def _users(path, packages, attributes=frozenset(), names=frozenset()):
    """Return the definitions of a module that use a package, an attribute or a name; None means all of them."""
    tree = _tree(path)
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr)]
    if any(_packages(node) & packages for node in top):
        return None
    definitions = _definitions(path)
    users = {
        name
        for name, own_packages, own_attributes, own_names in definitions
        if own_packages & packages or own_attributes & attributes or own_names & names
    }
    while more := {name for name, *_, own_names in definitions if name not in users and own_names & users}:
        users |= more
    return users


def _uses(item, *what):
    users = _users(item.path, *what)
    return users is None or bool(users & {getattr(item, "originalname", ""), getattr(item.cls, "__name__", "")})


def of(item):
    """Return the tiers of a test from its source."""
    tiers = []
    if _uses(item, frozenset(LIBRARIES), frozenset(LAYERS), frozenset({"theirs"})):
        tiers.append("parity")
    if "browser" in item.fixturenames or _uses(item, frozenset({"playwright"})):
        tiers.append("browser")
    return tiers


@cache
def needs_posix(path):
    """Return whether a test module uses what only Linux and macOS have, or imports a shared module that needs it.

    A shared module needs it if its import fails elsewhere: its functions may.
    """
    tree = _tree(path)
    if path.name.startswith("test_"):
        if _packages(tree) & POSIX or "SIGKILL" in _attributes(tree):
            return True
    elif any(_packages(node) & POSIX for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)):
        return True
    modules = {
        TESTS.joinpath(*name.split(".")).with_suffix(".py")
        for name in _imports(tree)
        if name.partition(".")[0] in SHARED
    }
    return any(needs_posix(module) for module in modules if module.is_file())
