"""The equations that docstrings state, as MathML."""

import re
from html import escape

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-zα-ω]+)|(?P<up>[ᵀ²³′]|⁽[^⁾]+⁾)|(?P<down>[₀-₉]+)"
    r"|(?P<half>½)|(?P<other>\S))"
)
_UP = str.maketrans("ᵀ²³ⁿᵗ¹⁻", "T23nt1−")
_DOWN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = {"exp", "log", "ln", "sin", "cos", "tanh", "erf", "max", "min", "softmax", "Concat", "onehot", "mean"}
_NAMED = {"FFN", "LN", "MHA", "MultiHead", "Attention", "RMSNorm", "PE", "KL", "act", "ids", "logits", "scale", "drop"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "‖": "‖", "|": "|"}
_BETWEEN = frozenset("=+−-⊙·∈←→,;:~<>≤≥≠…")
"""What a fraction does not reach across."""


def mathml(equation: str) -> str:
    """An equation, as the equations' docstrings write it, as a `<math>` element.

    What is no mathematics, such as "likewise", stays text. Nothing is lost: all letters of the equation are in it.

    >>> from clearhead.inspection.report.mathml import mathml
    >>> mathml("X²")
    '<math display="block"><msup><mi>X</mi><mn>2</mn></msup></math>'
    """
    parts, _ = _Parser(equation).row(0, None)
    return f'<math display="block">{parts}</math>'


class _Parser:
    def __init__(self, equation: str) -> None:
        self.tokens = [match for match in _TOKEN.finditer(equation) if match.lastgroup]

    def row(self, place: int, closing: str | None) -> tuple[str, int]:
        """All up to a closing bracket, which is left. A stroke between blanks is a fraction's: above it stands what is
        multiplied before it, below it one factor."""
        parts: list[str] = []
        first = 0  # of the factors that are multiplied
        while place < len(self.tokens) and self._text(place) != closing:
            if self._divides(place) and parts:
                above = parts[min(first, len(parts) - 1) :]
                below, place = self.factor(place + 1)
                parts[len(parts) - len(above) :] = [f"<mfrac>{_inside(above)}{_inside(below)}</mfrac>"]
                continue
            text = self._text(place)
            part, place = self.scripted(place)
            parts.append(part)
            if text in _BETWEEN or part.startswith("<mtext>"):
                first = len(parts)
        return "".join(parts), place

    def factor(self, place: int) -> tuple[list[str], int]:
        """An atom; a sum or a function with what it is of."""
        parts: list[str] = []
        while place < len(self.tokens):
            text = self._text(place)
            part, place = self.scripted(place)
            parts.append(part)
            if text != "Σ" and text not in _FUNCTIONS:
                break
        return parts, place

    def _divides(self, place: int) -> bool:
        return self._text(place) == "/" and self._spaced(place) and self._spaced(place + 1)

    def _spaced(self, place: int) -> bool:
        return place < len(self.tokens) and self.tokens[place].group().startswith(" ")

    def scripted(self, place: int) -> tuple[str, int]:
        """An atom with what stands above and below it."""
        atom, place = self.atom(place)
        down = up = ""
        while place < len(self.tokens):
            kind, text = self.tokens[place].lastgroup, self._text(place)
            if kind == "up":
                more = "<mo>′</mo>" if text == "′" else _letters(text.strip("⁽⁾").translate(_UP))
                up, place = up + more, place + 1
            elif kind == "down":
                down, place = down + f"<mn>{text.translate(_DOWN)}</mn>", place + 1
            elif text == "_" and place + 1 < len(self.tokens):
                more, place = self.script(place + 1)
                down += more
            elif text == "^" and place + 1 < len(self.tokens):
                more, place = self.script(place + 1)
                up += more
            else:
                break
        if atom == "<mo>Σ</mo>" and down:
            return f"<munder>{atom}<mrow>{down}</mrow></munder>", place
        if down and up:
            return f"<msubsup>{atom}{_one(down)}{_one(up)}</msubsup>", place
        if down or up:
            return f"<msu{'b' if down else 'p'}>{atom}{_one(down or up)}</msu{'b' if down else 'p'}>", place
        return atom, place

    def script(self, place: int) -> tuple[str, int]:
        """What an underscore or a caret binds: a group, or the letters and digits that follow at once."""
        text = self._text(place)
        if text in ("{", "("):
            inner, place = self.row(place + 1, _CLOSING[text])
            return inner, place + 1
        return _letters(text), place + 1

    def atom(self, place: int) -> tuple[str, int]:
        kind, text = self.tokens[place].lastgroup, self._text(place)
        if kind == "number":
            return f"<mn>{text}</mn>", place + 1
        if kind == "word":
            return _word(text), place + 1
        if kind == "half":
            return "<mfrac><mn>1</mn><mn>2</mn></mfrac>", place + 1
        if text == "√" and place + 1 < len(self.tokens):
            if self._text(place + 1) == "(":
                inner, place = self.row(place + 2, ")")
                return f"<msqrt>{inner}</msqrt>", place + 1
            inner, place = self.scripted(place + 1)
            return f"<msqrt>{inner}</msqrt>", place
        # strokes with blanks around them stand between two things: KL(p ‖ r), P(t | s)
        if text in _CLOSING and not (text in "‖|" and self._spaced(place + 1)):
            inner, after = self.row(place + 1, _CLOSING[text])
            close = f"<mo>{_CLOSING[text]}</mo>" if after < len(self.tokens) else ""
            return f"<mrow><mo>{text}</mo>{inner}{close}</mrow>", after + 1
        return f"<mo>{escape(text)}</mo>", place + 1

    def _text(self, place: int) -> str:
        return self.tokens[place].group().strip()


def _word(word: str) -> str:
    if len(word) == 1:
        return f"<mi>{word}</mi>"
    if word in _FUNCTIONS or word in _NAMED or word[0].isupper():
        return f"<mi>{word}</mi>"
    return f"<mtext>&#160;{word}&#160;</mtext>" if word.isalpha() and word.islower() else f"<mi>{word}</mi>"


def _letters(text: str) -> str:
    """Letters and digits in a script: an index each where they are short, a word where they are long."""
    if text.isdigit():
        return f"<mn>{text}</mn>"
    if text.isalpha() and (len(text) > 2 or text.isupper()) and len(text) > 1:
        return f'<mi mathvariant="normal">{text}</mi>'
    return "".join(f"<mn>{letter}</mn>" if letter.isdigit() else f"<mi>{escape(letter)}</mi>" for letter in text)


def _one(parts: str) -> str:
    """Several elements as one."""
    return parts if len(re.findall(r"<m[a-z]+[ >]", parts)) == 1 else f"<mrow>{parts}</mrow>"


def _inside(parts: list[str]) -> str:
    """Factors above or below a fraction's line, where one bracket around all of them is not needed."""
    bare = re.fullmatch(r"<mrow><mo>\(</mo>(.*)<mo>\)</mo></mrow>", parts[0]) if len(parts) == 1 else None
    return f"<mrow>{bare[1] if bare else ''.join(parts)}</mrow>"
