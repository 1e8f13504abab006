"""Exported models, opened by the libraries that they are for, against the model itself."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from clearhead.equations import masks
from clearhead.export.texts import TEXTS
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.outputs import Generated

BOUND = 1e-4
"""How far an output may be from the model's, of the largest number there, in float32."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of converters, who tell of what is not installed and not needed, and of texts that were cut
    for a comparison."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def greedy(made: TextToText, texts: Sequence[str]) -> list[Generated]:
    """What a model makes of texts, greedily; one of many languages is told the first."""
    target = min(made.tokenizer.languages, default=None)
    return made.generate(texts, beam_size=1, max_new_tokens=16, target_lang=target, return_details=True)


def check(error: float, what: str) -> float:
    """The error, if it is within the bound.

    Raises:
        ValueError: it is not.
    """
    if not error <= BOUND:
        raise ValueError(f"{what} {error:.1e} from the model's, of the largest number; at most {BOUND:.0e} is allowed")
    return error


def ctranslate2(made: TextEncoder | TextToText, folder: Path, texts: Sequence[str] = TEXTS) -> float:
    """The largest difference of hidden states, or of the log-probabilities of what the model itself writes.

    Args:
        made: the model.
        folder: what the converter wrote.
        texts: what both are given.

    Raises:
        ValueError: it is above the bound.
    """
    import ctranslate2 as library

    if isinstance(made, TextEncoder):
        encoder = library.Encoder(str(folder), device="cpu", compute_type="float32")
        rows = [list(tokens.ids) for tokens in made.tokenize(texts)]
        error = 0.0
        for row in rows:
            found = np.array(encoder.forward_batch([row]).last_hidden_state)
            with torch.inference_mode():
                wanted = made.model(torch.tensor([row])).numpy()
            error = max(error, float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())))
        return check(error, "its hidden states are")
    translator = library.Translator(str(folder), device="cpu", compute_type="float32")
    error, config = 0.0, made.model.config
    outputs = greedy(made, texts)
    for tokens, output in zip(made.tokenizer.encode(texts, made.max_length), outputs, strict=True):
        given = [id_ for id_ in output.token_ids if id_ not in config.eos_ids]
        target = torch.tensor([[config.start_id, *given, config.eos_ids[0]]])
        with torch.inference_mode():
            source = torch.tensor([tokens.ids])
            logits = made.model(source, target[:, :-1], masks.padding(torch.ones_like(source, dtype=torch.bool)))
        wanted = logits.log_softmax(-1).gather(2, target[:, 1:, None])[0, :, 0].numpy()
        words = [made.tokenizer.words(list(ids)) for ids in (tokens.ids, given)]
        (scored,) = translator.score_batch([words[0]], [words[1]])
        found = np.array(scored.log_probs)
        away = np.abs(found - wanted).max() if found.shape == wanted.shape else np.inf
        error = max(error, float(away / max(1.0, np.abs(wanted).max())))
    return check(error, "its log-probabilities are")
