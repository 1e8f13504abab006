"""Docstrings as the site shows them: equation and source in lines of their own, examples as examples."""

import re

import griffe

_STATED = re.compile(r"^(?:(?:Equation|Source):.*\n?(?:[ ]{4,}.*\n?)*)+", re.MULTILINE)
_EACH = re.compile(r"^(Equation|Source):(.*(?:\n[ ]{4,}.*)*)", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def shown(text: str) -> str:
    """A docstring in the parser's terms."""

    def stated(found: re.Match[str]) -> str:
        lines = []
        for name, said in _EACH.findall(found[0]):
            said = " ".join(said.split())
            lines.append(f"**{name}:** `{said}`" if name == "Equation" else f"**{name}:** {said}")
        return "\n\n".join(lines) + "\n"

    def example(found: re.Match[str]) -> str:
        return "Examples:\n" + "\n".join("    " + line for line in found[0].split("\n"))

    return _EXAMPLE.sub(example, _STATED.sub(stated, text))


class Docstrings(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
