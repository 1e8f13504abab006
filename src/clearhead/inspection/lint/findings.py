"""What the linter says of each mistake: where, why, and the mend."""

from dataclasses import dataclass

from torch import Tensor

SHUT = -104.0
"""A key is masked where its score is lowered by so much: exp(−104) is 0 in float32, and so is the key's weight."""


@dataclass(frozen=True)
class Finding:
    """A mistake.

    Args:
        mistake: what is wrong, such as "padding is attended".
        where: in which attention, which row of the batch, which positions.
        why: what shows it.
        mend: what to do.

    >>> from clearhead import Finding
    >>> print(Finding("padding is attended", "row 1", "The result depends on the batch.", "Pass a padding mask."))
    padding is attended (row 1): The result depends on the batch. Pass a padding mask.
    """

    mistake: str
    where: str
    why: str
    mend: str

    def __str__(self) -> str:
        return f"{self.mistake} ({self.where}): {self.why} {self.mend}"


def fully_masked(where: str, row: int, place: int) -> Finding:
    """Says that a token may attend to nothing."""
    return Finding(
        "a row is fully masked",
        f"{where}, row {row}, position {place}",
        "This token may attend to nothing: some kernels give NaN for it, others the mean of all tokens or zeros.",
        "Let each token attend to one at least, itself for instance, and look at the mask's polarity.",
    )


def inverted(where: str, row: int, place: int | str) -> Finding:
    """Says that the padding is what may be attended."""
    return Finding(
        "the padding mask is inverted",
        f"{where}, row {row}, position {place}",
        "Padding is attended, and the text is ignored.",
        "Turn the mask round (~mask): here and in scaled_dot_product_attention True means may attend, in torch.nn's "
        "masks it means may not.",
    )


def causal_encoder(where: str, row: int, place: int | str) -> Finding:
    """Says that an encoder sees no later token."""
    return Finding(
        "the encoder is causal",
        f"{where}, row {row}, position {place}",
        "No token reaches any that comes after it.",
        "Leave the causal mask to the decoder: an encoder sees the whole text. (In a decoder without an encoder, it is "
        "right.)",
    )


def unseen(part: str, own_BL: Tensor, other_BL: Tensor | None) -> list[Finding]:
    """Says that a real token may not attend to itself: under a causal mask nobody else tells of the last one.

    Args:
        part: which attention.
        own_BL: the real tokens that may not.
        other_BL: the padding of the other sequence.
    """
    if not bool(own_BL.any()):
        return []
    row, place = own_BL.nonzero()[0].tolist()
    where = f"{part}, row {row}, position {place}"
    if other_BL is not None and other_BL.shape == own_BL.shape and not bool((own_BL & other_BL).any()):
        return [swapped(where)]
    return [ignored(where, "This real token may not attend to itself.")]


def masks_nothing(name: str, added: Tensor) -> list[Finding]:
    """Says so of a mask of floats that masks nothing: 0 and 1 mostly, meant as false and true."""
    if not bool(opened(added).all()):
        return []
    return [
        Finding(
            "a float mask masks nothing",
            name,
            f"Its numbers, from {float(added.min()):g} to {float(added.max()):g}, are added to the scores: none is so "
            "low that a weight becomes 0.",
            "Make it bool (mask != 0), or 0 where attention is allowed and -inf where it is not.",
        )
    ]


def opened(added: Tensor) -> Tensor:
    """Where a weight may be other than 0: where the number is not so much below the row's best, or below no mask."""
    return added > added.amax(dim=-1, keepdim=True).clamp(min=0) + SHUT


def swapped(where: str) -> Finding:
    """Says that an attention has the padding of the other sequence."""
    return Finding(
        "source and target padding are swapped",
        where,
        "What is attended is what is real in the other sequence.",
        "Give each attention the padding of its own keys; cross-attention's keys are the source's.",
    )


def ignored(where: str, why: str) -> Finding:
    """Says that real tokens are hidden from the others."""
    return Finding(
        "text is ignored",
        where,
        why,
        "Look where the mask says padding: is pad_id a word here, or was the mask made for another batch?",
    )
