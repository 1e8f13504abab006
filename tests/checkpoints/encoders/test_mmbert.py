"""mmBERT: a ModernBERT config written by transformers 4, with the tokenizer of Gemma 2."""

import json

import numpy as np
import pytest
import torch
import transformers
from support.models.families import make
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from clearhead import Reranker, TextEncoder, masks
from clearhead.checkpoints import load_masked_lm

TEXTS = ["the bridge", "", " two  spaces", "ünïcode ☂", "<s>tag</s> the <mask>", "t h e"]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]


def gemma_like(folder):
    """Write a BPE tokenizer with byte fallback and ▁ for spaces; HTML tags are tokens that are not special."""
    pieces = [
        *SPECIAL,
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"thebridg",
        "th",
        "the",
        "▁the",
    ]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    ids = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    backend.save(str(folder / "tokenizer.json"))
    config = {f"{token[1:-1]}_token": token for token in SPECIAL}
    config |= {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True}
    config |= {"model_max_length": 8192, "padding_side": "right", "cls_token": None, "sep_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(pieces)


def mmbert(folder, kind="Model", **changes):
    """Save a tiny random model with the keys of mmBERT's config.json; return it as transformers opens it."""
    folder.mkdir(exist_ok=True)
    make("modernbert", folder, kind, vocab_size=gemma_like(folder), max_position_embeddings=8192, **changes)
    for name in ("vocab.txt", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    gemma_like(folder)
    data = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "rope_parameters", "dtype"):
        data.pop(key, None)
    (folder / "config.json").write_text(
        json.dumps(
            data
            | {"global_attn_every_n_layers": 3, "global_rope_theta": 160000, "local_rope_theta": 160000}
            | {"bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "sep_token_id": 1, "pad_token_id": 0}
            | {"deterministic_flash_attn": False, "initializer_cutoff_factor": 2.0, "layer_norm_eps": 1e-05}
            | {"position_embedding_type": "sans_pos", "repad_logits_with_grad": False, "sparse_prediction": False}
            | {"sparse_pred_ignore_index": -100, "torch_dtype": "float32", "transformers_version": "4.48.0"}
        )
    )
    return getattr(transformers, f"ModernBert{kind}").from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mmbert")
    return folder, mmbert(folder), TextEncoder.from_pretrained(folder, precision="float32", device="cpu")


@pytest.mark.slow
def test_vectors_equal_those_of_transformers(opened):
    folder, theirs, ours = opened
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert ours.model.config.local_rotary_theta == ours.model.config.rotary_theta == 160_000
    for text, tokens in zip(TEXTS, ours.tokenize(TEXTS), strict=True):
        ids = tokenizer(text)["input_ids"]
        assert tokens.ids == ids
        assert (ids[0], ids[-1]) == (2, 1)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(ours.encode(text), expected, atol=1e-5, rtol=1e-5)


def test_saved_folder_keeps_the_special_tokens(opened, tmp_path):
    _, _, ours = opened
    ours.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert {key: config[key] for key in ("bos_token", "eos_token", "pad_token", "mask_token")} == {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    assert "<s>" not in config.values(), "a tag in a text is no special token"
    again = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu")
    assert np.array_equal(again.encode(TEXTS), ours.encode(TEXTS))
    assert again.tokenizer.decode(again.tokenizer.encode(["<s>the</s>"])[0].ids) == "<s>the</s>"


@pytest.mark.slow
def test_masked_lm_and_reranker_open(tmp_path):
    theirs = mmbert(tmp_path / "lm", "ForMaskedLM")
    ours, _ = load_masked_lm(tmp_path / "lm")
    ids = torch.randint(5, 260, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids, masks.padding(ids > 0)), theirs(ids).logits, atol=1e-4, rtol=1e-5)
    theirs = mmbert(tmp_path / "pairs", "ForSequenceClassification", num_labels=1, classifier_pooling="mean")
    reranker = Reranker.from_pretrained(tmp_path / "pairs", precision="float32", device="cpu")
    (tokens,) = reranker.tokenizer.encode_pairs([("the bridge", "the")], 100)
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens.ids])).logits.sigmoid()
    assert tokens.ids.count(1) == 2
    assert reranker.score([("the bridge", "the")])[0] == pytest.approx(float(expected), abs=1e-5)
