"""The certificate of a checkpoint: what should change nothing is tried, and changes nothing."""

import importlib.util
from pathlib import Path

import torch

from clearhead import checkpoints
from clearhead.inspection.verify.certificate import Certificate, hashes, versions
from clearhead.inspection.verify.checks import Checks
from clearhead.inspection.verify.encoder import EncoderChecks
from clearhead.inspection.verify.heads import HeadChecks
from clearhead.inspection.verify.seq2seq import Seq2SeqChecks
from clearhead.io import hub


def verify(model: str | Path, against: str | None = None) -> Certificate:
    """Tries a checkpoint in every way that should not matter, and compares it with the library that it came from.

    Computed in float32 on the CPU, with token ids drawn from a fixed seed.

    Args:
        model: a folder, or a Hub id.
        against: "transformers" to insist on the comparison; None makes it where that library is installed.

    Returns:
        The certificate. A failed check is in it, and no error; one that raises fails.

    Raises:
        ValueError: no such model, one that is not understood, or a library to compare with that is not installed.

    >>> from clearhead import verify
    >>> verify("all-MiniLM-L6-v2").holds  # doctest: +SKIP
    True
    """
    folder = hub.resolve_model(model)
    there = importlib.util.find_spec("transformers") is not None
    if against is not None and against != "transformers":
        raise ValueError(f"a model is compared with transformers; got {against!r}")
    if against is not None and not there:
        raise ValueError("transformers is not installed: pip install transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = _checks(folder).all(there)
    return Certificate(str(model), tuple(found), versions(), hashes(folder))


def _checks(folder: Path) -> Checks:
    """Those of the kind of model in a folder."""
    match checkpoints.checkpoint_type(folder):
        case "seq2seq":
            return Seq2SeqChecks(folder, *checkpoints.load_seq2seq(folder))
        case "classification":
            return HeadChecks(folder, *checkpoints.load_classifier(folder))
        case "span":
            return HeadChecks(folder, *checkpoints.load_span_reader(folder))
        case "encoder":
            return EncoderChecks(folder, *checkpoints.load_encoder(folder))
