"""A run as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve import schemas
from clearhead.serve.handlers.base import PreparedRequest, estimate_tokens, lengths
from clearhead.serve.http.errors import RefusedError
from clearhead.serve.pages import web_pages

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
        return self._cost(estimate_tokens([asked.text]))

    def prepare(self, asked: schemas.ViewRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        made = self.made
        if isinstance(made, TextToText):
            if not asked.text.strip():
                raise RefusedError("text: it is blank; of that nothing is generated", "text")
            before, limit = made.prompts.prefix, made.max_length
        else:
            before, limit = made.settings.prompt_text(None), made.settings.max_length
        (count,) = lengths(made.tokenizer, [before + asked.text], limit, cut=False, advice="send less")
        return PreparedRequest([(asked.text, self._cost(count))])

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a page's HTML each."""
        return [web_pages.run(self.name, self.made, text) for text in payloads]

    def _cost(self, tokens: int) -> int:
        beams = _BEAMS if isinstance(self.made, TextToText) else 0
        return tokens + beams * (2 * tokens + 16)
