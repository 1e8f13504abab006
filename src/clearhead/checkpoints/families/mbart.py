"""mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020), translation models for 25 and 50 languages.

BART with pre-norm, and with a final norm in encoder and decoder. The two share a model type; their tokenizers differ.
"""

from dataclasses import replace

from clearhead.checkpoints.families.bart import BART, KEYS, LARGE_SIZES, LEARNED_POSITIONS
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily, register_seq2seq
from clearhead.tokenizers.auto import TokenizerFiles, TokenizerFormat
from clearhead.tokenizers.languages import MBART50_CODES, MBART_CODES, LanguageTokenScheme
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary

# fairseq has four special tokens where sentencepiece has three
_MBART_VOCABULARY = SentencePieceVocabulary(
    "MBartTokenizer",
    ("sentencepiece.bpe.model",),
    first_tokens=("<s>", "<pad>", "</s>", "<unk>"),
    num_skipped=3,
    last_tokens=(*MBART_CODES, "<mask>"),
)
_MBART50_VOCABULARY = replace(
    _MBART_VOCABULARY, tokenizer_class="MBart50Tokenizer", last_tokens=(*MBART50_CODES, "<mask>")
)
_MBART_SCHEME = LanguageTokenScheme(
    "{}", "[a-z]{2}_[A-Z]{2}", default_source="en_XX", source_after_eos=True, starts_target=True
)
_MBART50_SCHEME = LanguageTokenScheme("{}", "[a-z]{2}_[A-Z]{2}", default_source="en_XX")


def _is_mbart50(files: TokenizerFiles) -> bool:
    if files.tokenizer_class in ("MBartTokenizer", "MBart50Tokenizer"):
        return files.tokenizer_class == "MBart50Tokenizer"
    return files.has_token("af_ZA")


MBART = register_seq2seq(
    Seq2SeqFamily(
        model_type="mbart",
        architecture="MBartForConditionalGeneration",
        parameter_names=lambda config: LEARNED_POSITIONS,
        prefix="model.",
        default_ids=(1, 2, 2),
        keys=KEYS,
        default_sizes=LARGE_SIZES,
        constants=dict(BART.constants) | {"norm_order": "pre"},
        allowed_values=dict(BART.allowed_values) | {"normalize_before": True, "add_final_layer_norm": True},
        tokenizer=TokenizerFormat(
            lambda files: _MBART50_VOCABULARY if _is_mbart50(files) else _MBART_VOCABULARY,
            lambda files: _MBART50_SCHEME if _is_mbart50(files) else _MBART_SCHEME,
        ),
    )
)
