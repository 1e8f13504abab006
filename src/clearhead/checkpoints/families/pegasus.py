"""Pegasus (Zhang et al. 2020), a summariser.

Peculiar: Marian's sinusoids, which its files hold; norms before, and one at the end of each half; a target starts with
the padding token.
"""

from clearhead.checkpoints.families.bart import COMPUTED, KEYS, USUAL
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_ONLY, Seq2SeqFamily

PEGASUS = Seq2SeqFamily(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    table=lambda config: COMPUTED,
    prefix="model.",
    ids=(0, 1, 0),
    keys=KEYS,
    usual=USUAL,
    fixed={"positions": "concatenated", "norm_order": "pre", "output_bias": True},
    only=SEQ2SEQ_ONLY | {"static_position_embeddings": True, "normalize_before": True, "add_final_layer_norm": True},
    saves_positions=True,
)
