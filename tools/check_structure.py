"""Check import circles in the package, and the sizes of folders, files and functions in all code.

Run from the repository root: ``python tools/check_structure.py``. With ``--report`` it prints the findings and exits
with 0. Imports count wherever they are: at the top of a module, inside functions and under ``TYPE_CHECKING``.
"""

import argparse
import ast
import statistics
import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

SOURCE = Path("src")
PACKAGE = "clearhead"

MAX_ENTRIES = 12
MAX_FILE_LINES = 400
MAX_MEDIAN_LINES = 150
MAX_FUNCTION_LINES = 60

PLUGIN_FOLDERS = frozenset(
    {
        *(
            "checkpoints/families",
            "inspection/lint/rules",
            "generation",
            "kernels",
            "serve/handlers",
            "train/regularizers",
        ),
        "runtime/converters",
        "train/tasks",
    }
)
"""Folders with one file for each plug-in, such as a family or a lint rule."""

OPEN_FOLDERS = PLUGIN_FOLDERS | {"."}
"""Folders without a limit: those of plug-ins, and the package itself, whose folders the import contract orders."""

OTHER_CODE: dict[Path, frozenset[str]] = {
    Path("tests"): frozenset({"."}),  # mirrors the package
    Path("recipes"): frozenset({".", "tiny"}),  # a file for each task
    **dict.fromkeys((Path("benchmarks"), Path("tools")), frozenset()),
}
"""Folders with code outside the package, and their subfolders without a limit of entries."""

UNCOUNTED_NAMES = frozenset({"__init__.py", "__pycache__", "conftest.py", "py.typed"})


def module_name(path: Path, source: Path = SOURCE) -> str:
    """Return the dotted name of a module.

    >>> module_name(Path("src/clearhead/io/__init__.py"))
    'clearhead.io'
    """
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.AST, name: str, modules: frozenset[str], *, is_package: bool = False) -> set[str]:
    """Return the modules of the package that a module imports, wherever the import is.

    Args:
        tree: the syntax tree of the module.
        name: its dotted name.
        modules: the dotted names of all modules of the package.
        is_package: whether the module is a package's ``__init__``.

    >>> tree = ast.parse("def f():\\n    from clearhead.io import json, missing")
    >>> sorted(imported_modules(tree, "clearhead.a", frozenset({"clearhead.io", "clearhead.io.json"})))
    ['clearhead.io', 'clearhead.io.json']
    """
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                imported.add(submodule if submodule in modules else base)
    return (imported & modules) - {name}


def import_graph(source: Path = SOURCE) -> dict[str, set[str]]:
    """Return for each module of the package the modules that it imports."""
    paths = {module_name(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    modules = frozenset(paths)
    return {
        name: imported_modules(
            ast.parse(path.read_text(encoding="utf-8")), name, modules, is_package=path.name == "__init__.py"
        )
        for name, path in paths.items()
    }


def import_circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972).

    >>> import_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c']]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in order:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], order[imported])
        if lowest[module] == order[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                circles.append(sorted(component))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return circles


def function_lengths(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of each function, without docstring and decorators.

    >>> list(function_lengths(ast.parse('def f():\\n    "Return 1."\\n    return 1')))
    [('f', 2)]
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None and first.end_lineno is not None:
                lines -= first.end_lineno - first.lineno + 1
            yield node.name, lines


def oversized_folders(root: Path, open_folders: Container[str]) -> Iterator[str]:
    """Yield a finding for each folder of Python and YAML files with too many entries.

    Args:
        root: the folder to search.
        open_folders: folders without a limit, relative to the root.
    """
    for folder in sorted({root, *(path.parent for path in root.rglob("*") if path.suffix in {".py", ".yaml"})}):
        entries = [
            path
            for path in folder.iterdir()
            if path.name not in UNCOUNTED_NAMES and (path.is_file() or any(path.rglob("*")))
        ]
        if len(entries) > MAX_ENTRIES and folder.relative_to(root).as_posix() not in open_folders:
            yield f"{folder}: {len(entries)} entries, at most {MAX_ENTRIES} are allowed"


def oversized_files(root: Path) -> Iterator[str]:
    """Yield a finding for each file and function that is too long."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        length = text.count("\n")
        if length >= MAX_FILE_LINES:
            yield f"{path}: {length} lines, fewer than {MAX_FILE_LINES} are allowed"
        for name, lines in function_lengths(ast.parse(text)):
            if lines >= MAX_FUNCTION_LINES:
                yield f"{path}: {name} has {lines} lines, fewer than {MAX_FUNCTION_LINES} are allowed"


def oversized_median(package: Path) -> Iterator[str]:
    """Yield a finding if the median file of the package is too long."""
    median = statistics.median(path.read_text(encoding="utf-8").count("\n") for path in package.rglob("*.py"))
    if median >= MAX_MEDIAN_LINES:
        yield f"{package}: the median file has {median} lines, fewer than {MAX_MEDIAN_LINES} are allowed"


def findings() -> list[str]:
    """Return all violations, as messages."""
    package = SOURCE / PACKAGE
    messages = [f"import circle: {', '.join(circle)}" for circle in import_circles(import_graph())]
    messages += oversized_median(package)
    for root, open_folders in {package: OPEN_FOLDERS, **OTHER_CODE}.items():
        messages += [*oversized_folders(root, open_folders), *oversized_files(root)]
    return messages


def main() -> int:
    """Print the findings; return the exit status."""
    parser = argparse.ArgumentParser(description="Check import circles and the sizes of folders, files and functions.")
    parser.add_argument("--report", action="store_true", help="exit with 0 even if there are findings")
    arguments = parser.parse_args()
    messages = findings()
    sys.stdout.write("".join(f"{message}\n" for message in messages))
    return 0 if arguments.report else min(1, len(messages))


if __name__ == "__main__":
    sys.exit(main())
