"""Typeset the equations of tables and docstrings as MathML, which browsers render without a script."""

import re

from clearhead.inspection.report.mathml import mathml


def typeset_tables(markdown):
    """Typeset the equations of tables: the cells below a header "equation"."""
    lines, column = [], None
    for line in markdown.split("\n"):
        cells = re.split(r"(?<!\\)\|", line)
        if not line.startswith("|"):
            column = None
        elif column is None:
            headers = [cell.strip() for cell in cells]
            column = headers.index("equation") if "equation" in headers else 0
        elif column and not set(line) <= set("|-: "):
            cells[column] = f" {inline_math(cells[column].strip().replace(chr(92) + '|', '|'))} "
            line = "|".join(cells)
        lines.append(line)
    return "\n".join(lines)


def inline_math(equation):
    """Convert an equation to inline MathML with escaped Markdown characters; lines break after top-level commas."""
    parts = (mathml(part).replace('display="block"', 'displaystyle="true"') for part in split(equation))
    inline = " ".join(f'<span class="equation">{keep_brackets_low(part)}</span>' for part in parts)
    return inline.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")


def keep_brackets_low(math):
    """Stretch brackets only around fractions: without a mathematical font, other stretched brackets are too tall."""
    return math if "<mfrac>" in math else re.sub(r"<mo>([()\[\]{}])</mo>", r'<mo stretchy="false">\1</mo>', math)


def split(equation):
    """Split an equation after commas, semicolons and colons outside brackets.

    >>> split("Z = f(X, Y), n = 1; else 0")
    ['Z = f(X, Y),', 'n = 1;', 'else 0']
    """
    parts, depth = [""], 0
    for word in re.findall(r"\S+\s*", equation):
        parts[-1] += word
        depth += sum(word.count(bracket) for bracket in "([{") - sum(word.count(bracket) for bracket in ")]}")
        if depth <= 0 and word.rstrip().endswith((",", ";", ":")):
            parts.append("")
    return [part.strip() for part in parts if part.strip()]
