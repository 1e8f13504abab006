"""Verify a checkpoint: padding, batching, caches, kernels, precision and saving must not change its results."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch

from clearhead import checkpoints
from clearhead.inspection.verify.certificate import Certificate, Check, hashes, versions
from clearhead.inspection.verify.checks import NOT_INSTALLED, Checks
from clearhead.inspection.verify.encoder import EncoderChecks
from clearhead.inspection.verify.heads import HeadChecks
from clearhead.inspection.verify.seq2seq import Seq2SeqChecks
from clearhead.io import hub


def verify(
    model: str | Path, reference: str | None = None, *, on_check: Callable[[Check], object] = lambda check: None
) -> Certificate:
    """Run all checks on a checkpoint and compare it with transformers.

    Computes in float32 on the CPU, with random token ids from a fixed seed.

    Args:
        model: a folder, or a Hub id.
        reference: "transformers" to require the comparison; by default it runs if that library is installed.
        on_check: called with each result as soon as its check is done.

    Returns:
        The certificate with the result of each check. A check that raises an error fails.

    Raises:
        ValueError: the model does not exist or is not supported, or the reference library is not installed.

    >>> from clearhead import verify
    >>> verify("all-MiniLM-L6-v2").holds  # doctest: +SKIP
    True
    """
    folder = hub.resolve_model(model)
    has_transformers = importlib.util.find_spec("transformers") is not None
    if reference is not None and reference != "transformers":
        raise ValueError(f'The reference must be "transformers"; got {reference!r}.')
    if reference is not None and not has_transformers:
        raise ValueError("transformers is not installed: pip install transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        checks, results = _checks_of(folder), []
        if reference is not None and checks.no_reference is not None:
            raise ValueError(f"{folder}: {checks.no_reference}; leave the reference out to run the other checks")
        with torch.inference_mode():
            for check in checks.run(checks.no_reference if has_transformers else NOT_INSTALLED):
                results.append(check)
                on_check(check)
    return Certificate(str(model), tuple(results), versions(), hashes(folder))


def _checks_of(folder: Path) -> Checks:
    """Load the model of a folder and return the checks of its type."""
    match checkpoints.checkpoint_type(folder):
        case "seq2seq":
            return Seq2SeqChecks(folder, *checkpoints.load_seq2seq(folder))
        case "classification" | "reranking":
            return HeadChecks(folder, *checkpoints.load_classifier(folder))
        case "span":
            return HeadChecks(folder, *checkpoints.load_span_classifier(folder))
        case "encoder":
            return EncoderChecks(folder, *checkpoints.load_encoder(folder))
