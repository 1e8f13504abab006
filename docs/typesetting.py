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
    """Return an equation as MathML that Markdown keeps as it is."""
    inline = mathml(equation).replace('display="block"', 'displaystyle="true"')
    return inline.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")
