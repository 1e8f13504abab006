"""Model folders of tiny random encoder–decoders with trained tokenizers."""

import json

from clearhead.checkpoints import load_tokenizer
from support.models import spm
from support.models.seq2seq import make


def marian(folder, *, codes=(), separate=False, **changes):
    """Write a Marian folder; return transformers' model."""
    spm.marian(folder, codes=codes, separate=separate)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    pad, size = vocabulary["<pad>"], len(vocabulary)
    ids = {"vocab_size": size, "decoder_vocab_size": size, "pad_token_id": pad, "decoder_start_token_id": pad}
    ids |= {"eos_token_id": vocabulary["</s>"], "forced_eos_token_id": None}
    return make("marian", folder, **(ids | changes))


def plain(family, folder, kind=None, **changes):
    """Write a T5, Pegasus, mBART, mBART-50 or NLLB folder with a sentencepiece model; return transformers' model."""
    config = {"src_lang": "en_XX"} if family.startswith("mbart") else {}
    spm.plain(family, folder, **config)
    kind = kind or {"mbart50": "mbart", "nllb": "m2m_100"}.get(family, family)
    size = max(load_tokenizer(folder, kind.split()[0]).pieces) + 1
    return make(kind, folder, **({"vocab_size": size} | changes))


def m2m100(folder, **changes):
    """Write an M2M100 folder; return transformers' model."""
    spm.m2m100(folder)
    size = max(load_tokenizer(folder, "m2m_100").pieces) + 1
    return make("m2m_100", folder, **({"vocab_size": size} | changes))


def bart(folder, **changes):
    """Write a BART folder; return transformers' model."""
    spm.bart(folder)
    return make("bart", folder, **({"vocab_size": 400} | changes))
