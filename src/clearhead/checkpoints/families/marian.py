"""Marian (Junczys-Dowmunt et al. 2018), the family of the OPUS-MT translation models.

The sinusoidal positions are concatenated halves, which are computed and not saved. Source and target may have separate
vocabularies. Targets start with the padding token.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.families.bart import COMPUTED_POSITIONS, KEYS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_VALUES, Seq2SeqFamily, register_seq2seq
from clearhead.models.config import Seq2SeqConfig
from clearhead.tokenizers.auto import TokenizerFormat
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    size = data.get("decoder_vocab_size")
    if size is not None and type(size) is not int:
        raise ValueError(f"decoder_vocab_size={size!r:.80}; expected an integer")
    return {"target_vocab_size": data["vocab_size"] if size is None else size}


def _write(config: Seq2SeqConfig) -> dict[str, Any]:
    return {
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
    }


_VOCABULARY = SentencePieceVocabulary("MarianTokenizer", ("source.spm", "target.spm"), "vocab.json", joins_pieces=False)
_SCHEME = LanguageTokenScheme(">>{}<<", r"[^<>\s]+", default_source=None)

MARIAN = register_seq2seq(
    Seq2SeqFamily(
        model_type="marian",
        architecture="MarianMTModel",
        parameter_names=lambda config: COMPUTED_POSITIONS,
        prefix="model.",
        default_ids=(58100, 0, 58100),
        keys=KEYS,
        # as in the paper and in OPUS-MT: scaled embeddings, ReLU and Xavier initialization
        default_sizes={"embedding_scale": True, "activation": "relu", "initializer_range": None},
        separate_vocabularies=True,
        constants={"positions": "concatenated", "norm_order": "post", "output_bias": True},
        allowed_values=SEQ2SEQ_VALUES | {"static_position_embeddings": True},
        custom=CustomConfig(
            frozenset({"decoder_vocab_size", "share_encoder_decoder_embeddings"}),
            frozenset({"target_vocab_size"}),
            _read,
            _write,
        ),
        tokenizer=TokenizerFormat(lambda files: _VOCABULARY, lambda files: _SCHEME),
    )
)
