"""Convert the equations of docstrings to MathML."""

import re
from html import escape

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-zα-ω]+)|(?P<up>[ᵀ²³′]|⁽[^⁾]+⁾)|(?P<down>[₀-₉]+)"
    r"|(?P<half>½)|(?P<other>\S))"
)
_SUPERSCRIPTS = str.maketrans("ᵀ²³ⁿᵗ¹⁻", "T23nt1−")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = {"exp", "log", "ln", "sin", "cos", "tanh", "erf", "max", "min", "softmax", "Concat", "onehot", "mean"}
_NAMES = {"FFN", "LN", "MHA", "MultiHead", "Attention", "RMSNorm", "PE", "KL", "act", "ids", "logits", "scale", "drop"}
_BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "‖": "‖", "|": "|"}
_SEPARATORS = frozenset("=+−-⊙·∈←→,;:~<>≤≥≠…")
"""Operators at which the numerator of a fraction starts."""


def mathml(equation: str) -> str:
    """Return an equation in the notation of the docstrings as a `<math>` element.

    Words stay text. The element has all characters of the equation.

    >>> from clearhead.inspection.report.mathml import mathml
    >>> mathml("X²")
    '<math display="block"><msup><mi>X</mi><mn>2</mn></msup></math>'
    """
    parts, _ = _Parser(equation).row(0, None)
    return f'<math display="block">{parts}</math>'


class _Parser:
    def __init__(self, equation: str) -> None:
        self.tokens = [match for match in _TOKEN.finditer(equation) if match.lastgroup]

    def row(self, index: int, closing: str | None) -> tuple[str, int]:
        """Parse up to a closing bracket, and return the elements and its index.

        A slash between blanks is a fraction of the factors before it and the one after it.
        """
        parts: list[str] = []
        first = 0  # index of the first factor of the current term
        while index < len(self.tokens) and self._text(index) != closing:
            if self._divides(index) and parts:
                numerator = parts[min(first, len(parts) - 1) :]
                denominator, index = self.factor(index + 1)
                parts[len(parts) - len(numerator) :] = [
                    f"<mfrac>{_without_brackets(numerator)}{_without_brackets(denominator)}</mfrac>"
                ]
                continue
            text = self._text(index)
            part, index = self.scripted(index)
            parts.append(part)
            if text in _SEPARATORS or part.startswith("<mtext>"):
                first = len(parts)
        return "".join(parts), index

    def factor(self, index: int) -> tuple[list[str], int]:
        """Parse an atom, or a sum or function with its argument."""
        parts: list[str] = []
        while index < len(self.tokens):
            text = self._text(index)
            part, index = self.scripted(index)
            parts.append(part)
            if text != "Σ" and text not in _FUNCTIONS:
                break
        return parts, index

    def _divides(self, index: int) -> bool:
        return self._text(index) == "/" and self._spaced(index) and self._spaced(index + 1)

    def _spaced(self, index: int) -> bool:
        return index < len(self.tokens) and self.tokens[index].group().startswith(" ")

    def scripted(self, index: int) -> tuple[str, int]:
        """Parse an atom with its superscripts and subscripts."""
        atom, index = self.atom(index)
        down = up = ""
        while index < len(self.tokens):
            kind, text = self.tokens[index].lastgroup, self._text(index)
            if kind == "up":
                more = "<mo>′</mo>" if text == "′" else _letters(text.strip("⁽⁾").translate(_SUPERSCRIPTS))
                up, index = up + more, index + 1
            elif kind == "down":
                down, index = down + f"<mn>{text.translate(_SUBSCRIPTS)}</mn>", index + 1
            elif text == "_" and index + 1 < len(self.tokens):
                more, index = self.script(index + 1)
                down += more
            elif text == "^" and index + 1 < len(self.tokens):
                more, index = self.script(index + 1)
                up += more
            else:
                break
        if atom == "<mo>Σ</mo>" and down:
            return f"<munder>{atom}<mrow>{down}</mrow></munder>", index
        if down and up:
            return f"<msubsup>{atom}{_one(down)}{_one(up)}</msubsup>", index
        if down or up:
            return f"<msu{'b' if down else 'p'}>{atom}{_one(down or up)}</msu{'b' if down else 'p'}>", index
        return atom, index

    def script(self, index: int) -> tuple[str, int]:
        """Parse the script after an underscore or a caret: a group, or adjacent letters and digits."""
        text = self._text(index)
        if text in ("{", "("):
            inner, index = self.row(index + 1, _BRACKETS[text])
            return inner, index + 1
        return _letters(text), index + 1

    def atom(self, index: int) -> tuple[str, int]:
        kind, text = self.tokens[index].lastgroup, self._text(index)
        if kind == "number":
            return f"<mn>{text}</mn>", index + 1
        if kind == "word":
            return _word(text), index + 1
        if kind == "half":
            return "<mfrac><mn>1</mn><mn>2</mn></mfrac>", index + 1
        if text == "√" and index + 1 < len(self.tokens):
            if self._text(index + 1) == "(":
                inner, index = self.row(index + 2, ")")
                return f"<msqrt>{inner}</msqrt>", index + 1
            inner, index = self.scripted(index + 1)
            return f"<msqrt>{inner}</msqrt>", index
        # bars between blanks are operators: KL(p ‖ r), P(t | s)
        if text in _BRACKETS and not (text in "‖|" and self._spaced(index + 1)):
            inner, after = self.row(index + 1, _BRACKETS[text])
            close = f"<mo>{_BRACKETS[text]}</mo>" if after < len(self.tokens) else ""
            return f"<mrow><mo>{text}</mo>{inner}{close}</mrow>", after + 1
        return f"<mo>{escape(text)}</mo>", index + 1

    def _text(self, index: int) -> str:
        return self.tokens[index].group().strip()


def _word(word: str) -> str:
    if len(word) == 1:
        return f"<mi>{word}</mi>"
    if word in _FUNCTIONS or word in _NAMES or word[0].isupper():
        return f"<mi>{word}</mi>"
    return f"<mtext>&#160;{word}&#160;</mtext>" if word.isalpha() and word.islower() else f"<mi>{word}</mi>"


def _letters(text: str) -> str:
    """Return the letters and digits of a script as single indices, or as a word if there are many."""
    if text.isdigit():
        return f"<mn>{text}</mn>"
    if text.isalpha() and (len(text) > 2 or text.isupper()) and len(text) > 1:
        return f'<mi mathvariant="normal">{text}</mi>'
    return "".join(f"<mn>{letter}</mn>" if letter.isdigit() else f"<mi>{escape(letter)}</mi>" for letter in text)


def _one(parts: str) -> str:
    """Return elements as one element."""
    return parts if len(re.findall(r"<m[a-z]+[ >]", parts)) == 1 else f"<mrow>{parts}</mrow>"


def _without_brackets(parts: list[str]) -> str:
    """Return the factors of a fraction without brackets around all of them."""
    bare = re.fullmatch(r"<mrow><mo>\(</mo>(.*)<mo>\)</mo></mrow>", parts[0]) if len(parts) == 1 else None
    return f"<mrow>{bare[1] if bare else ''.join(parts)}</mrow>"
