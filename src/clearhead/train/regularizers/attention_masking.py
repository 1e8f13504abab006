"""Attention masking: whether tokens attend to padding."""

from clearhead.train.regularizers.base import Ablation, Regularizer

ATTENTION_MASKING = Regularizer(
    name="attention_masking",
    value_type=bool,
    default=True,
    meaning="whether padding is masked in training. If false, tokens attend to padding; the causal mask stays.",
    equation="no token attends to padding",
    without="tokens attend to padding in training; the causal mask stays",
    source="paper, 3.2.3",
    code="equations/masks.py",
    ablation=Ablation(off={"attention_masking": False}, on={"attention_masking": True}),
)
