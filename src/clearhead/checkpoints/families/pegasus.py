"""Pegasus (Zhang et al. 2020), a summarization model.

The positions are Marian's sinusoids, which the files contain. Pre-norm with a final norm in encoder and decoder.
Targets start with the padding token.
"""

from clearhead.checkpoints.families.bart import COMPUTED_POSITIONS, KEYS, LARGE_SIZES
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_VALUES, Seq2SeqFamily, register_seq2seq
from clearhead.tokenizers.auto import TokenizerFiles, TokenizerFormat
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary

_VOCABULARY = SentencePieceVocabulary(
    "PegasusTokenizer",
    ("spiece.model",),
    first_tokens=("<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103))),
    num_skipped=2,
)


def _vocabulary(files: TokenizerFiles) -> SentencePieceVocabulary:
    offset = files.config.get("offset", 103)
    if offset != 103:
        raise ValueError(f"tokenizer_config.json in {files.folder} has offset={offset!r:.80}; only 103 is supported")
    return _VOCABULARY


PEGASUS = register_seq2seq(
    Seq2SeqFamily(
        model_type="pegasus",
        architecture="PegasusForConditionalGeneration",
        parameter_names=lambda config: COMPUTED_POSITIONS,
        prefix="model.",
        default_ids=(0, 1, 0),
        keys=KEYS,
        default_sizes=LARGE_SIZES,
        constants={"positions": "concatenated", "norm_order": "pre", "output_bias": True},
        allowed_values=SEQ2SEQ_VALUES
        | {"static_position_embeddings": True, "normalize_before": True, "add_final_layer_norm": True},
        saves_sinusoids=True,
        tokenizer=TokenizerFormat(_vocabulary),
    )
)
