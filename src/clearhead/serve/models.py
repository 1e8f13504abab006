"""The models that are served: what each can do, and doing it for the jobs of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.run.answers import QuestionAnswerer
from clearhead.run.encode import EncodeOptions, TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.precision import Precision
from clearhead.run.summarize import summaries
from clearhead.run.tasks import TextClassifier
from clearhead.serve import site
from clearhead.text.interface import Tokens

Use = Literal["embed", "translate", "summarize", "answer", "classify", "view"]


@dataclass(frozen=True)
class Key:
    """What jobs have in common that are computed together."""

    model: str
    use: Use
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class TooLongError(ValueError):
    """A text is longer than the model takes."""

    tokens: int
    limit: int

    def __str__(self) -> str:
        return f"the text has {self.tokens} tokens; this model takes at most {self.limit}"


@dataclass(frozen=True)
class Served:
    """A loaded model.

    Args:
        name: what clients call it.
        uses: what it can do, each with what does it.
    """

    name: str
    uses: dict[Use, Any]

    def tokens(self, use: Use, texts: Sequence[str]) -> list[Tokens]:
        """The texts as the model sees them, uncut."""
        made = self.uses[use]
        if isinstance(made, TextToText):
            return made.tokenizer.encode([made.prompts.before + text for text in texts])
        prompt = made._prompt(None) if isinstance(made, TextEncoder) else ""
        return made.tokenizer.encode([prompt + text for text in texts])  # type: ignore[no-any-return]

    def perform(self, key: Key, payloads: Sequence[Any]) -> list[Any]:
        """What comes of some jobs of a key: of an embedding's tokens a vector, of an answer's question and context an
        answer, of other texts what the use makes of them."""
        made, options = self.uses[key.use], dict(key.options)
        if key.use == "embed":
            return list(np.asarray(made.encode_tokens(payloads, EncodeOptions(**options))))
        if key.use == "view":
            return [site.run(self.name, made, text) for text in payloads]
        if key.use == "translate":
            return list(made.generate(payloads, return_details=True, **options))
        if key.use == "summarize":
            return list(summaries(made, payloads, **options))
        if key.use == "answer":
            return list(made.answers(payloads, **options))
        return list(made.classify(payloads))

    def limit(self, use: Use) -> int | None:
        """Most tokens that it takes."""
        made = self.uses[use]
        found = made.settings.max_length if isinstance(made, TextEncoder) else made.max_length
        return None if found is None else int(found)


def load(asked: str, precision: Precision, device: str) -> Served:
    """A model by its folder or Hub id, or NAME=that.

    Raises:
        ValueError: no such model, or one that is not understood.
    """
    name, found, place = asked.partition("=")
    folder = directory.find(place if found else asked)
    how: dict[str, Any] = {"precision": precision, "device": device}
    if checkpoints.is_seq2seq(folder):
        made = TextToText.from_pretrained(folder, **how)
        answers = QuestionAnswerer.from_pretrained(folder, **how)
        return Served(name, {"translate": made, "summarize": made, "answer": answers, "view": made})
    head = checkpoints.head_in(folder)
    if head == "classification":
        return Served(name, {"classify": TextClassifier.from_pretrained(folder, **how)})
    if head == "span":
        return Served(name, {"answer": QuestionAnswerer.from_pretrained(folder, **how)})
    encoder = TextEncoder.from_pretrained(folder, **how)
    return Served(name, {"embed": encoder, "view": encoder})
