"""A run as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.serve import schemas, site
from clearhead.serve.errors import RefusedError
from clearhead.serve.uses.interface import Work, guess, lengths

_BEAMS = 4


@dataclass(frozen=True)
class View:
    """The pages of texts' runs.

    Args:
        name: what the model is called there.
        made: the model.
    """

    name: str
    made: TextEncoder | TextToText

    def estimate(self, asked: schemas.ViewRequest) -> int:
        """As `Use.estimate`."""
        return self._cost(guess([asked.text]))

    def prepare(self, asked: schemas.ViewRequest) -> Work:
        """As `Use.prepare`."""
        made = self.made
        if isinstance(made, TextToText):
            if not asked.text.strip():
                raise RefusedError("text: it is blank; of that nothing is generated", "text")
            before, limit = made.prompts.before, made.max_length
        else:
            before, limit = made._prompt(None), made.settings.max_length
        (count,) = lengths(made.tokenizer, [before + asked.text], limit, cut=False, advice="send less")
        return Work([(asked.text, self._cost(count))])

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a page's HTML each."""
        return [site.run(self.name, self.made, text) for text in payloads]

    def _cost(self, tokens: int) -> int:
        beams = _BEAMS if isinstance(self.made, TextToText) else 0
        return tokens + beams * (2 * tokens + 16)
