"""Vocabulary shortlists: which tokens a target may have, and the file next to the weights."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.command import clearhead, refused
from support.models import folders

from clearhead import TextToText, memory
from clearhead.generation.shortlist import learn
from clearhead.generation.shortlist.shortlist import FILE, Shortlist, read_shortlist, write_shortlist
from clearhead.io.hub import TRANSLATOR
from clearhead.kernels.native import unfused
from clearhead.models.config import Seq2SeqConfig
from clearhead.runtime.int8.seq2seq import Int8Seq2Seq

SOURCES = ["the house", "a small dog", "we see the water", "", "the old bridge", "hello world"]
TARGETS = ["a small dog", "the house", "the water", "", "we see", "the old bridge"]
SIZE = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shortlist") / "marian"
    folder.mkdir()
    folders.marian(folder)
    (folder / "sources.txt").write_text("".join(f"{text}\n" for text in SOURCES))
    (folder / "targets.txt").write_text("".join(f"{text}\n" for text in TARGETS))
    status, _, err = clearhead("shortlist", str(folder), str(folder / "sources.txt"), str(folder / "targets.txt"))
    assert status == 0, err
    assert f"wrote {folder / FILE}" in err
    assert "learned from 5 pairs:" in err
    return folder


@given(
    rows=st.lists(st.sets(st.integers(0, SIZE - 1)), min_size=SIZE, max_size=SIZE),
    common=st.sets(st.integers(0, SIZE - 1)),
    sources=st.lists(st.lists(st.integers(0, SIZE - 1), max_size=4), max_size=5),
)
def test_allowed_tokens_are_those_of_the_source_and_the_common_ones(rows, common, sources):
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    tokens = torch.tensor([token for row in rows for token in sorted(row)], dtype=torch.long)
    shortlist = Shortlist(starts, tokens, torch.tensor(sorted(common), dtype=torch.long), SIZE)
    expected = [sorted(common.union(*(rows[token] for token in source))) for source in sources]
    assert [allowed.ids().tolist() for allowed in shortlist.allowed(sources)] == expected


def test_tokens_are_learned_from_the_pairs(monkeypatch):
    monkeypatch.setattr(learn, "NUM_COMMON", 1)
    config = Seq2SeqConfig(vocab_size=9, d_model=8, num_heads=1, ffn_hidden=8, num_layers=1, eos_ids=(0,))
    shortlist = learn.learn_shortlist([[1, 2], [1], [1]], [[5, 6], [5], [5]], config)
    assert shortlist.common_C.tolist() == [0, 5]  # the end token, and the most frequent one
    assert [tokens.ids().tolist() for tokens in shortlist.allowed([[1], [2], [3]])] == [
        [0, 1, 5, 6],
        [0, 2, 5, 6],
        [0, 3, 5],
    ]
    monkeypatch.setattr(learn, "MAX_TRANSLATIONS", 1)
    shortlist = learn.learn_shortlist([[1, 2], [1], [1]], [[5, 6], [5], [5]], config)
    assert [tokens.ids().tolist() for tokens in shortlist.allowed([[1], [2]])] == [[0, 1, 5], [0, 2, 5, 6]]


def test_separate_vocabularies_copy_nothing(monkeypatch):
    monkeypatch.setattr(learn, "NUM_COMMON", 1)
    sizes = {"d_model": 8, "num_heads": 1, "ffn_hidden": 8, "num_layers": 1}
    config = Seq2SeqConfig(vocab_size=4, target_vocab_size=9, share_embeddings=False, eos_ids=(0,), **sizes)
    shortlist = learn.learn_shortlist([[1], [1, 2]], [[7], [7, 8]], config)
    assert [tokens.ids().tolist() for tokens in shortlist.allowed([[1], [2], [3]])] == [[0, 7, 8], [0, 7, 8], [0, 7]]


def test_long_files_are_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(learn, "MAX_LINKS", 1)
    translator = TextToText.from_pretrained(precision="float32")
    texts = iter([("Good morning!", "Guten Morgen!")] * 1000)
    sources, targets = learn.tokenize_pairs(texts, translator.tokenizer, 20)
    assert len(sources) == len(targets) == 512
    assert len(list(texts)) == 1000 - 512


def test_pairs_that_do_not_fit_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**30)
    config = Seq2SeqConfig(vocab_size=9, d_model=8, num_heads=1, ffn_hidden=8, num_layers=1, eos_ids=(0,))
    pair = list(range(9)), [5] * 1000  # nine links for each token of the target
    with pytest.raises(ValueError, match=r"learning from 3,000 pairs needs at least 1\.0 GiB .* Give fewer pairs"):
        learn.learn_shortlist([pair[0]] * 3000, [pair[1]] * 3000, config)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3},
        {"beam_size": 1, "do_sample": True},
        {"beam_size": 2, "no_repeat_ngram_size": 2},
    ],
)
def test_outputs_have_allowed_tokens_only(folder, precision, options):
    model = TextToText.from_pretrained(folder, precision=precision, device="cpu", shortlist=True)
    shortlist, sources = model.shortlist, model.tokenizer.encode(SOURCES)
    keep = torch.tensor(
        [token for token in shortlist.common_C.tolist() if token % 2 or token in model.model.config.eos_ids]
    )
    model.shortlist = Shortlist(shortlist.starts_S, shortlist.tokens_T, keep, shortlist.target_size)
    allowed = model.shortlist.allowed([source.ids for source in sources])
    outputs = model.generate(SOURCES, return_details=True, max_new_tokens=6, **options)
    for output, tokens in zip(outputs, allowed, strict=True):
        assert set(output.token_ids) <= set(tokens.ids().tolist())
    model.shortlist = None
    free = model.generate(SOURCES, return_details=True, max_new_tokens=6, **options)
    assert any(
        not set(output.token_ids) <= set(tokens.ids().tolist()) for output, tokens in zip(free, allowed, strict=True)
    )  # the shortlist changes something here
    streamed = TextToText.from_pretrained(folder, precision=precision, device="cpu", shortlist=True)
    assert list(streamed.stream(SOURCES[0], max_new_tokens=3))


@pytest.mark.slow
def test_shortlist_of_the_whole_vocabulary_changes_nothing(folder):
    model = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    expected = model.generate(SOURCES, beam_size=3, return_details=True)
    size = model.model.config.vocab_size
    model.shortlist = Shortlist(
        torch.zeros(size + 1, dtype=torch.long), torch.empty(0).long(), torch.arange(size), size
    )
    assert model.generate(SOURCES, beam_size=3, return_details=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("extra", [[], [[7], [7, 9]]], ids=["common tokens only", "further tokens"])
def test_fused_steps_choose_as_unfused_ones(beam_size, extra):
    model = TextToText.from_pretrained(precision="int8", device="cpu")
    if model.precision.name != "int8":
        pytest.skip("this processor has no kernels for 8 bits")
    assert isinstance(model.inference_model, Int8Seq2Seq)
    size = model.model.config.vocab_size
    common = torch.arange(size)[1::2]  # so that a token's index among them is not its id
    eos = torch.tensor(model.model.config.eos_ids)
    common = torch.cat([common, eos]).unique()
    further = [tokens for source in range(size) for tokens in (extra[source % len(extra)] if extra else [])]
    counts = [len(extra[source % len(extra)]) if extra else 0 for source in range(size)]
    starts = torch.tensor([0, *counts]).cumsum(0)
    model.shortlist = Shortlist(starts, torch.tensor(further, dtype=torch.long), common, size)
    options = {"beam_size": beam_size, "return_details": True, "max_new_tokens": 8}
    fused = model.generate(SOURCES, **options)
    with unfused():
        expected = model.generate(SOURCES, **options)
    assert [output.token_ids for output in fused] == [output.token_ids for output in expected]
    assert [output.score for output in fused] == pytest.approx([output.score for output in expected], abs=1e-4)


def test_more_beams_than_allowed_tokens(folder):
    model = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    size = model.model.config.vocab_size
    model.shortlist = Shortlist(torch.zeros(size + 1, dtype=torch.long), torch.empty(0).long(), torch.arange(4), size)
    with pytest.raises(ValueError, match="beam_size is 5; the shortlist allows 4 tokens"):
        model.generate(SOURCES, beam_size=5)


@pytest.mark.slow
def test_only_the_bundled_model_in_8_bits_uses_a_shortlist_by_default(folder):
    assert TextToText.from_pretrained(folder, precision="int8").shortlist is None
    assert TextToText.from_pretrained(precision="float32").shortlist is None
    assert TextToText.from_pretrained(precision="int8", shortlist=False).shortlist is None
    bundled = TextToText.from_pretrained(precision="int8")
    assert (bundled.shortlist is not None) == (bundled.precision.name == "int8")


@pytest.mark.slow
def test_other_model_with_the_name_of_the_bundled_one_needs_no_shortlist(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / TRANSLATOR)
    (tmp_path / TRANSLATOR / FILE).unlink()
    monkeypatch.chdir(tmp_path)
    model = TextToText.from_pretrained(TRANSLATOR, precision="int8")
    assert model.model.config.vocab_size == TextToText.from_pretrained(folder).model.config.vocab_size
    assert model.shortlist is None


def test_saved_with_the_model(folder, tmp_path):
    model = TextToText.from_pretrained(folder, precision="float32", shortlist=True)
    model.save_pretrained(tmp_path)
    copy = TextToText.from_pretrained(tmp_path, precision="float32", shortlist=True)
    assert all(
        torch.equal(getattr(copy.shortlist, name), getattr(model.shortlist, name))
        for name in ("starts_S", "tokens_T", "common_C")
    )


@pytest.mark.slow
def test_command(folder):
    arguments = (
        "translate",
        str(folder / "sources.txt"),
        "-m",
        str(folder),
        "--beam-size",
        "2",
        "--max-new-tokens",
        "5",
    )
    status, with_list, err = clearhead(*arguments, "--shortlist")
    assert status == 0, err
    model = TextToText.from_pretrained(folder, shortlist=True)
    assert with_list.splitlines() == model.generate(SOURCES, beam_size=2, max_new_tokens=5)
    assert clearhead(*arguments, "--no-shortlist")[1] == clearhead(*arguments)[1]


def change_metadata(path, **changes):
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    save_file(load_file(path), path, {**header["__metadata__"], **changes})


def truncate(path):
    path.write_bytes(path.read_bytes()[:-20])


def change_tensor(name, change):
    def damage(path):
        header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
        tensors = load_file(path)
        tensors[name] = change(tensors[name])
        save_file(tensors, path, header["__metadata__"])

    return damage


DAMAGE = [
    (lambda path: path.unlink(), "there is no {}; run `clearhead shortlist` to make it"),
    (lambda path: path.write_text("not a file of tensors"), "{} is damaged: "),
    (truncate, "{} is damaged: "),
    (lambda path: change_metadata(path, format="0"), "{} was written by another version of clearhead; "),
    (lambda path: change_metadata(path, vocabulary="0" * 16), "{} was made for another vocabulary than the model's; "),
    (change_tensor("tokens_T", lambda tokens: tokens + 10**6), "{} is damaged: its tokens are outside the vocabulary"),
    (change_tensor("common_C", lambda tokens: tokens - 10**6), "{} is damaged: its tokens are outside the vocabulary"),
    (change_tensor("starts_S", lambda starts: starts[:-1]), "{} is damaged: its tokens are outside the vocabulary"),
    (change_tensor("starts_S", lambda starts: starts.flip(0)), "{} is damaged: its tokens are outside the vocabulary"),
    (
        change_tensor("common_C", lambda tokens: tokens.repeat(9)),
        "{} is damaged: its common tokens are not ascending; ",
    ),
    (change_tensor("tokens_T", lambda tokens: tokens.float()), "{} is damaged: it has other tensors than a shortlist"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_files_are_rejected_by_name(folder, tmp_path, damage, message):
    path = tmp_path / FILE
    model = TextToText.from_pretrained(folder, precision="float32")
    size = model.model.config.vocab_size
    shortlist = Shortlist(torch.arange(size + 1).clamp(max=2), torch.tensor([5, 7]), torch.tensor([0, 1]), size)
    write_shortlist(path, shortlist, model.tokenizer, model.model.config)
    read_shortlist(path, model.tokenizer, model.model.config)
    damage(path)
    with pytest.raises(ValueError, match="run `clearhead shortlist`") as error:
        read_shortlist(path, model.tokenizer, model.model.config)
    assert str(error.value).startswith(message.format(path))


@pytest.mark.slow
def test_shortlist_of_another_model_is_rejected(folder):
    model, bundled = TextToText.from_pretrained(folder), TextToText.from_pretrained()
    size = bundled.model.config.vocab_size
    empty = torch.empty(0, dtype=torch.long)
    path = folder / "other.safetensors"
    shortlist = Shortlist(torch.zeros(size + 1, dtype=torch.long), empty, empty, size)
    write_shortlist(path, shortlist, bundled.tokenizer, bundled.model.config)
    with pytest.raises(ValueError, match="was made for another vocabulary than the model's"):
        read_shortlist(path, model.tokenizer, model.model.config)


@pytest.mark.slow
def test_wrong_arguments(folder, tmp_path):
    source, target = str(folder / "sources.txt"), str(folder / "targets.txt")
    assert "is not a folder; give the folder of a model" in refused("shortlist", "tatoeba-en-de", source, target)
    short = tmp_path / "short.txt"
    short.write_text("one line\n")
    assert "short.txt" in refused("shortlist", str(folder), source, str(short))
    blank = tmp_path / "blank.txt"
    blank.write_text("\n" * len(SOURCES))
    assert "have no pair of sentences to learn from" in refused("shortlist", str(folder), source, str(blank))
    error = refused("translate", "hello", "-m", str(tmp_path / "none"), "--shortlist")
    assert "none" in error
