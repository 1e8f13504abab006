"""Exported models, opened by the libraries that they are for, against the model itself."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clearhead.equations import masks
from clearhead.export import example_inputs
from clearhead.io.json import read_json
from clearhead.models.heads import pool
from clearhead.pipelines.auto import Pipeline
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

BOUND = 1e-4
"""How far an output may be from the model's, of the largest number there, in float32."""


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
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


def check(error: float, what: str) -> float:
    """The error, if it is within the bound.

    Raises:
        ValueError: it is not.
    """
    if not error <= BOUND:
        raise ValueError(f"{what} {error:.1e} from the model's, of the largest number; at most {BOUND:.0e} is allowed")
    return error


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, of the largest number there; infinity where something is no number."""
    if found.shape != wanted.shape:
        return float("inf")
    error = (found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)
    return float(error.nan_to_num(nan=float("inf")))


def cosines(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """How near vectors (B, D) are to those of float32."""
    each = functional.cosine_similarity(found, wanted)
    return {"smallest cosine": float(each.min()), "mean cosine": float(each.mean())}


def log_prob_error(differences: Tensor) -> dict[str, float]:
    """How far the log-probabilities of tokens are from those of float32."""
    return {"mean change of a token's log-probability": float(differences.abs().mean())}


def transformers(made: Pipeline, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference of hidden states, or of the scores of a head or a decoder.

    Args:
        made: the model.
        folder: what was written.
        texts: what both are given, and a row as long as the model takes.

    Raises:
        ValueError: it is above the bound.
    """
    import transformers as library

    kind: Any = library.AutoModelForQuestionAnswering
    if isinstance(made, TextEncoder):
        kind = library.AutoModel
    elif isinstance(made, TextToText):
        kind = library.AutoModelForSeq2SeqLM
    elif isinstance(made, TextClassifier):
        kind = library.AutoModelForSequenceClassification
    theirs, error = kind.from_pretrained(folder, dtype=torch.float32).eval(), 0.0
    first, *others = example_inputs.of(made, texts)
    for number, batch in enumerate(first.all):
        keep, told, graph = batch["attention_mask"] != 0, dict(batch), first.graph
        if isinstance(made, TextToText):
            graph, batch = others[0].graph, others[0].all[number]
            told["decoder_input_ids"] = batch["input_ids"]
        with torch.inference_mode():
            outputs, wanted = theirs(**told), graph.module(*batch.values())
        if isinstance(made, TextEncoder):
            pairs = [(outputs.last_hidden_state[keep], wanted[1][keep])]
        elif isinstance(made, TextToText):
            real = batch["input_ids"] != made.model.config.pad_id
            real[:, 0] = True  # the start may be the padding token
            pairs = [(outputs.logits[real], wanted[0][real])]
        elif isinstance(made, TextClassifier):
            pairs = [(outputs.logits, wanted)]
        else:
            given = outputs.start_logits, outputs.end_logits
            pairs = [(one[keep], other[keep]) for one, other in zip(given, wanted, strict=True)]
        error = max(error, *(relative_error(one, other) for one, other in pairs))
    return check(error, "its hidden states or scores in transformers are")


def sentence_transformers(made: TextEncoder, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference of a vector, from texts on; arguments and errors as in `transformers`."""
    import sentence_transformers as library

    theirs = library.SentenceTransformer(str(folder), device="cpu")
    given = [*texts, " ".join([*texts] * (1 + 2 * made.model.config.max_len // len(" ".join(texts).split())))]
    found = theirs.encode(given, convert_to_numpy=True)
    return check(relative_error(torch.from_numpy(found), torch.from_numpy(made.encode(given))), "its vectors are")


def ctranslate2(made: TextEncoder | TextToText, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference of hidden states, or of the log-probabilities of what the model itself writes.

    Arguments and errors as in `transformers`.
    """
    if isinstance(made, TextEncoder):
        what, pairs = (
            "its hidden states are",
            _hidden(made, folder, _rows(example_inputs.of(made, texts)[0].all), "float32"),
        )
    else:
        what, pairs = "its log-probabilities are", _log_probs(made, folder, texts, "float32")
    return check(max(relative_error(found, wanted) for found, wanted in pairs), what)


def ctranslate2_loss(made: TextEncoder | TextToText, folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """What 8 bits cost: of an encoder the cosine of each text's vector with that of float32, of an encoder–decoder how
    far the log-probability of a token moves that the model itself writes."""
    if isinstance(made, TextToText):
        both = _log_probs(made, folder, texts, "default")
        return log_prob_error(torch.cat([found - wanted for found, wanted in both]))
    vectors: tuple[list[Tensor], list[Tensor]] = [], []
    for states in _hidden(made, folder, _rows(example_inputs.of(made, texts)[0].texts), "default"):
        for known, hidden in zip(vectors, states, strict=True):
            known.append(pool(hidden, torch.ones(hidden.shape[:2], dtype=torch.bool), made.settings.pooling))
    return cosines(torch.cat(vectors[0]), torch.cat(vectors[1]))


def _rows(batches: Sequence[example_inputs.Batch]) -> list[Tensor]:
    """The rows of batches, without padding."""
    return [
        row[kept != 0]
        for batch in batches
        for row, kept in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def _hidden(made: TextEncoder, folder: Path, rows: Sequence[Tensor], kind: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each row of ids CTranslate2's hidden states (1, L, D) and the model's."""
    import ctranslate2 as library

    encoder = library.Encoder(str(folder), device="cpu", compute_type=kind)
    for row in rows:
        found = np.array(encoder.forward_batch([row.tolist()]).last_hidden_state)
        with torch.inference_mode():
            yield torch.from_numpy(found), made.model(row[None])


def _log_probs(made: TextToText, folder: Path, texts: Sequence[str], kind: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each text the log-probabilities (L,) that CTranslate2 and the model give the model's own output."""
    import ctranslate2 as library

    translator, config = library.Translator(str(folder), device="cpu", compute_type=kind), made.model.config
    # a folder that names no start, as mBART's, is given it as the first word of the target
    start = [] if read_json(folder / "config.json").get("decoder_start_token") else [config.start_id]
    for tokens, output in zip(
        made.tokenizer.encode(texts, made.max_length), example_inputs.greedy(made, texts), strict=True
    ):
        given = [id_ for id_ in output.token_ids if id_ not in config.eos_ids]
        target = torch.tensor([[config.start_id, *given, config.eos_ids[0]]])
        with torch.inference_mode():
            source = torch.tensor([tokens.ids])
            logits = made.model(source, target[:, :-1], masks.padding(torch.ones_like(source, dtype=torch.bool)))
        wanted = logits.log_softmax(-1).gather(2, target[:, 1:, None])[0, :, 0]
        words = [made.tokenizer.ids_to_tokens(list(ids)) for ids in (tokens.ids, [*start, *given])]
        (scored,) = translator.score_batch([words[0]], [words[1]])
        yield torch.tensor(scored.log_probs), wanted
