"""M2M100 (Fan et al. 2020) and NLLB (2022), translation models for 100 and 200 languages.

The positions are fairseq's sinusoids, counted from the padding id + 1. Pre-norm with a final norm in encoder and
decoder; the logits have no bias. Targets start with the end token, followed by the target language.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.families.bart import COMPUTED_POSITIONS, KEYS, LARGE_SIZES
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_VALUES, Seq2SeqFamily, register_seq2seq
from clearhead.models.config import Seq2SeqConfig
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.auto import TokenizerFiles, TokenizerFormat
from clearhead.tokenizers.languages import M2M100_CODES, NLLB_CODES, LanguageTokenScheme
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    pad = data.get("pad_token_id")
    return {"position_offset": (1 if pad is None else pad) + 1}


def _write(config: Seq2SeqConfig) -> dict[str, Any]:
    if config.position_offset != config.pad_id + 1:
        raise ValueError(
            f"an m2m_100 checkpoint needs position_offset = pad_id + 1 = {config.pad_id + 1}; "
            f"got {config.position_offset}"
        )
    return {}


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"position_offset": values["pad_id"] + 1}


def _is_nllb(files: TokenizerFiles) -> bool:
    if files.tokenizer_class in ("M2M100Tokenizer", "NllbTokenizer"):
        return files.tokenizer_class == "NllbTokenizer"
    without_files = not any((files.folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    return files.has_token("eng_Latn") or without_files


def _vocabulary(files: TokenizerFiles) -> SentencePieceVocabulary:
    if _is_nllb(files):
        named = [token for token in special_tokens.additional_tokens(files.config) if token != "<mask>"]
        # fairseq has four special tokens where sentencepiece has three
        return SentencePieceVocabulary(
            "NllbTokenizer",
            ("sentencepiece.bpe.model",),
            first_tokens=("<s>", "<pad>", "</s>", "<unk>"),
            num_skipped=3,
            last_tokens=(*(named or NLLB_CODES), "<mask>"),
        )
    name = files.config.get("language_codes") or "m2m100"
    if name not in M2M100_CODES:
        raise ValueError(
            f"tokenizer_config.json in {files.folder} has language_codes={name!r:.80}. "
            f"Use one of: {', '.join(M2M100_CODES)}"
        )
    return SentencePieceVocabulary(
        "M2M100Tokenizer",
        ("sentencepiece.bpe.model",),
        "vocab.json",
        last_tokens=tuple(f"__{code}__" for code in M2M100_CODES[name]),
        special_tokens=("<s>", "</s>", "<unk>", "<pad>"),
        joins_pieces=False,
    )


def _languages(files: TokenizerFiles) -> LanguageTokenScheme:
    if _is_nllb(files):
        legacy = bool(files.config.get("legacy_behaviour"))
        return LanguageTokenScheme("{}", "[a-z]{3}_[A-Z][a-z]{3}", default_source="eng_Latn", source_after_eos=legacy)
    return LanguageTokenScheme("__{}__", "[a-z]{2,3}", default_source="en")


M2M_100 = register_seq2seq(
    Seq2SeqFamily(
        model_type="m2m_100",
        architecture="M2M100ForConditionalGeneration",
        parameter_names=lambda config: COMPUTED_POSITIONS,
        prefix="model.",
        default_ids=(1, 2, 2),
        keys=KEYS
        | {
            "activation_function": ("activation", "relu"),
            "scale_embedding": ("embedding_scale", True),
            "attention_dropout": ("attention_drop_prob", 0.1),
            "encoder_layerdrop": ("layer_drop", 0.05),
            "decoder_layerdrop": ("decoder_layer_drop", 0.05),
        },
        default_sizes=LARGE_SIZES,
        constants={"positions": "fairseq", "norm_order": "pre"},
        allowed_values=SEQ2SEQ_VALUES
        | {"static_position_embeddings": True, "normalize_before": True, "add_final_layer_norm": True},
        custom=CustomConfig(frozenset(), frozenset({"position_offset"}), _read, _write, _derived_defaults),
        tokenizer=TokenizerFormat(_vocabulary, _languages),
    )
)
