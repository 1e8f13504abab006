"""Format docstrings for the site: typeset equations, sources on separate lines, examples as example sections."""

import re

import griffe
from typesetting import inline_math  # found because MkDocs has loaded the hooks of this folder

_CITATIONS = re.compile(r"^(?:(?:Equation|Source):.*\n?(?:[ ]{4,}.*\n?)*)+", re.MULTILINE)
_CITATION = re.compile(r"^(Equation|Source):(.*(?:\n[ ]{4,}.*)*)", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def convert(text: str) -> str:
    """Convert a docstring to the syntax of the parser."""

    def format_citations(match: re.Match[str]) -> str:
        lines = []
        for name, text in _CITATION.findall(match[0]):
            text = " ".join(text.split())
            lines.append(f"**{name}:** {inline_math(text) if name == 'Equation' else text}")
        return "\n\n".join(lines) + "\n"

    def format_example(match: re.Match[str]) -> str:
        return "Examples:\n" + "\n".join("    " + line for line in match[0].split("\n"))

    return _EXAMPLE.sub(format_example, _CITATIONS.sub(format_citations, text))


class Docstrings(griffe.Extension):
    """Griffe extension that converts every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = convert(obj.docstring.value)
