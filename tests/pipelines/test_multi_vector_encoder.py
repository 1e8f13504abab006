"""Token vectors and MaxSim scores equal sentence-transformers', in both directions, also for folders of PyLate."""

import json
import shutil
import string

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder as TheirEncoder
from support.models.families import FAMILIES, make
from support.models.tiny import VOCABULARY
from transformers import AutoTokenizer

from clearhead import MultiVectorEncoder
from clearhead.equations.late_interaction import max_sim

QUERIES = ["hello world", "the old bridge was closed after the storm, was it?", "x", "", "this is a test"]
DOCUMENTS = ["the old bridge was closed.", "hello, world! this is the test. the old bridge was closed", "x", "", "..."]
PROMPTS = {"query": "query ", "document": "passage "}
FIXED = {"strategy": "fixed", "attend": False, "length": 9}
EXPANSIONS = {
    "none": None,
    "fixed": FIXED,
    "attend": FIXED | {"attend": True, "token": "[SEP]"},
    "min": FIXED | {"strategy": "min"},
}
CASES = [
    *((family, "fixed") for family in FAMILIES if family not in ("camembert", "xlm-roberta", "deberta-v2")),
    *(("bert", expansion) for expansion in EXPANSIONS if expansion != "fixed"),
    *((family, "attend") for family in ("deberta-v2", "roberta", "modernbert")),
]


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        other = np.asarray(other)
        assert one.shape == other.shape
        assert (np.linalg.norm(one - other, axis=-1) <= 1e-5 * np.linalg.norm(other, axis=-1)).all()


def opened(folder):
    return MultiVectorEncoder.from_pretrained(folder, precision="float32", device="cpu")


def their_model(folder, family="bert", expansion=None, **lengths):
    """Write a tiny model of sentence-transformers into folder/theirs; return it."""
    make(family, folder)
    torch.manual_seed(0)
    theirs = TheirEncoder(str(folder), device="cpu", prompts=PROMPTS)
    theirs[0].query_expansion = expansion
    theirs[0].query_length, theirs[0].document_length = lengths.get("query_length"), lengths.get("document_length", 12)
    theirs[2].skiplist_words = [*string.punctuation, "the"]
    theirs[2].resolve_with_tokenizer(theirs.tokenizer)
    theirs.save_pretrained(str(folder / "theirs"))
    return theirs


@pytest.fixture(scope="module")
def fixed_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixed")
    their_model(folder, expansion=FIXED)
    return folder / "theirs"


def assert_agree(ours, theirs):
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    assert_equal(ours.encode_query(QUERIES), queries)
    assert_equal(ours.encode_document(DOCUMENTS), documents)
    scores = ours.score(ours.encode_query(QUERIES), ours.encode_document(DOCUMENTS))
    np.testing.assert_allclose(scores, theirs.similarity(queries, documents), atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "expansion"), CASES)
def test_vectors_equal_those_of_sentence_transformers_both_ways(family, expansion, tmp_path):
    theirs = their_model(tmp_path, family, EXPANSIONS[expansion])
    ours = opened(tmp_path / "theirs")
    assert_agree(ours, theirs)
    ours.save_pretrained(tmp_path / "ours")
    assert_agree(ours, TheirEncoder(str(tmp_path / "ours"), device="cpu"))


def pylate_folder(folder, **settings):
    """Write a model as PyLate does: the prefixes are tokens of their own, added without any flag."""
    make("bert", folder, vocab_size=len(VOCABULARY) + 2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)
    modules = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    if settings.get("model_type") is None:
        modules |= {"2_Pooling": "sentence_transformers.models.Pooling"}
        write(folder / "2_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules.items())]
    write(folder / "modules.json", listed)
    dense = {"in_features": 32, "out_features": 16, "bias": False, "use_residual": False}
    write(folder / "1_Dense/config.json", dense | {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": torch.randn(16, 32)}, folder / "1_Dense/model.safetensors")
    write(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})
    prefixes = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
    write(folder / "config_sentence_transformers.json", {"document_length": 12, **prefixes, **settings})


def write(path, data):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "ColBERT", "query_length": 9, "similarity_fn_name": "MaxSim"},
        {"model_type": "ColBERT", "query_length": 12, "attend_to_expansion_tokens": True, "skiplist_words": ["the"]},
        {"model_type": "ColBERT", "query_length": 8, "do_query_expansion": False, "prompts": {"query": "query "}},
        {"query_length": 9, "similarity_fn_name": "cosine"},
    ],
)
def test_folders_of_pylate_both_ways(settings, tmp_path):
    pylate_folder(tmp_path, **settings)
    ours, theirs = opened(tmp_path), TheirEncoder(str(tmp_path), device="cpu")
    assert_agree(ours, theirs)
    (prefix,) = ours.tokenizer.encode(["[Q] x"])[0].ids[1:-2]
    assert prefix == len(VOCABULARY)
    ours.save_pretrained(tmp_path / "native")
    assert_agree(ours, TheirEncoder(str(tmp_path / "native"), device="cpu"))
    if "prompts" in settings:  # "[Q] query " is not one token
        with pytest.raises(ValueError, match=r"the query prompt '\[Q\] query ' is not a token of the vocabulary"):
            ours.save_pretrained(tmp_path / "pylate", format="pylate")
        return
    ours.save_pretrained(tmp_path / "pylate", format="pylate")
    assert_agree(ours, TheirEncoder(str(tmp_path / "pylate"), device="cpu"))
    assert opened(tmp_path / "pylate").settings == ours.settings


@given(st.integers(0, 2**31), st.integers(1, 5), st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_score_is_the_sum_over_the_query_of_the_best_match(seed, length, lengths):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(length, 3, generator=generator)
    rows = [torch.randn(size, 3, generator=generator) for size in lengths]
    keep = torch.arange(max(1, *lengths, 1)) < torch.tensor(lengths)[:, None]
    padded = torch.full((*keep.shape, 3), 9.0)
    padded[keep] = torch.cat(rows)
    expected = [sum(max(float(q @ d) for d in row) for q in query) if len(row) else -np.inf for row in rows]
    np.testing.assert_allclose(max_sim(query, padded, keep), expected, rtol=1e-4, atol=1e-5)
    scores = MultiVectorEncoder.score(None, [query.numpy()], [row.numpy() for row in rows])
    np.testing.assert_allclose(scores[0], expected, rtol=1e-4, atol=1e-5)


def test_rank_sorts_by_score(fixed_folder):
    ours = opened(fixed_folder)
    texts = DOCUMENTS[:3]
    ranked = ours.rank(QUERIES[0], texts)
    scores = ours.score([ours.encode_query(QUERIES[0])], [ours.encode_document(text) for text in texts])[0]
    assert [document.index for document in ranked] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([document.score for document in ranked], np.sort(scores)[::-1], atol=1e-4)
    assert ours.rank(QUERIES[0], texts, top_k=1) == ranked[:1]
    with pytest.raises(ValueError, match="top_k must be at least 1; got 0"):
        ours.rank(QUERIES[0], texts, top_k=0)
    with pytest.raises(ValueError, match="the query is blank; expected words"):
        ours.rank(" ", texts)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precision_is_close(precision, fixed_folder):
    exact = opened(fixed_folder).encode_query(QUERIES)
    lower = MultiVectorEncoder.from_pretrained(fixed_folder, precision=precision, device="cpu")
    cosines = [(one * other).sum(axis=1) for one, other in zip(exact, lower.encode_query(QUERIES), strict=True)]
    assert min(map(np.min, cosines)) > 0.97
    assert max(map(np.min, cosines)) < 1 - 1e-7


@pytest.mark.parametrize(
    ("path", "changes", "words"),
    [
        ("1_Dense/config.json", {"bias": True}, "bias=True, which is not supported; only False is"),
        ("1_Dense/config.json", {"activation_function": "torch.nn.Tanh"}, "activation_function='torch.nn.Tanh'"),
        ("1_Dense/config.json", {"dropout": 0.1}, "dropout=0.1, which is not supported"),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, r"skiplist_tasks=\['query'\]"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, r"keep_only_token_ids=\[3\]"),
        ("2_MultiVectorMask/config.json", {"skiplist_words": "a"}, "skiplist_words='a'; expected a list"),
        ("3_Normalize/config.json", {"module_input_name": "sentence_embedding"}, "module_input_name='sentence_embedd"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task='fill-mask'"),
        ("sentence_bert_config.json", {"query_length": 0}, "query_length=0; expected a number of tokens"),
        ("sentence_bert_config.json", {"query_length": 4}, "query_length=4 is below 9, to which queries are extended"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "max"}}, "expected an object with the strategy"),
        ("sentence_bert_config.json", {"query_expansion": FIXED | {"side": 1}}, "has 'side', which is not supported"),
        ("sentence_bert_config.json", {"query_expansion": FIXED | {"length": 50}}, "50 tokens, but the model takes at"),
        ("sentence_bert_config.json", {"query_expansion": FIXED | {"token": "<x>"}}, "does not have the token '<x>'"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "similarity_fn_name='meanmaxsim'"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "open it with TextEncoder"),
        ("config_sentence_transformers.json", {"pooling": 2}, "pooling=2, which is not supported"),
    ],
)
def test_unknown_settings_are_refused_by_name(path, changes, words, fixed_folder, tmp_path):
    shutil.copytree(fixed_folder, tmp_path / "theirs")
    file = tmp_path / "theirs" / path
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError, match=words):
        opened(tmp_path / "theirs")


def test_unknown_modules_and_broken_folders_are_refused(fixed_folder, tmp_path):
    folder = shutil.copytree(fixed_folder, tmp_path / "theirs")
    modules = json.loads((folder / "modules.json").read_text())
    for changed, words in (
        ([*modules, {"type": "x.HierarchicalTokenPooling", "path": ""}], "type 'x.HierarchicalTokenPooling'"),
        ([*modules, modules[1]], "Dense' a second time"),
        (modules[:3], "has the modules Transformer, Dense, MultiVectorMask; expected Transformer, Dense, Multi"),
        ([modules[0], *modules[2:]], "has the modules Transformer, MultiVectorMask, Normalize; expected"),
    ):
        write(folder / "modules.json", changed)
        with pytest.raises(ValueError, match=words):
            opened(folder)
    write(folder / "modules.json", modules)
    weights = load_file(folder / "1_Dense/model.safetensors")
    save_file({"linear.weight": weights["linear.weight"][:, 1:].contiguous()}, folder / "1_Dense/model.safetensors")
    with pytest.raises(ValueError, match=r"linear.weight \(128, 31\); expected linear.weight of shape \(K, 32\)"):
        opened(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(ValueError, match="has no modules.json with the projection"):
        opened(folder)


def test_deberta_is_refused_with_tokens_that_are_not_attended_to(tmp_path):
    their_model(tmp_path, "deberta-v2", FIXED)
    with pytest.raises(ValueError, match="cannot extend queries by tokens that the others do not attend to"):
        opened(tmp_path / "theirs")


def test_pylate_has_no_minimum_expansion(tmp_path):
    pylate_folder(tmp_path, query_expansion=EXPANSIONS["min"])
    ours = opened(tmp_path)
    with pytest.raises(ValueError, match="PyLate's query expansion truncates"):
        ours.save_pretrained(tmp_path / "pylate", format="pylate")
    with pytest.raises(ValueError, match="did you mean 'pylate'"):
        ours.save_pretrained(tmp_path / "pylate", format="pylat")
