"""BLEU and chrF equal sacrebleu, with any number of references."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from clearhead.metrics.bleu import group_references, translation_scores

HYPOTHESES = ["The old bridge was closed after the storm.", "A boat took children to the school!", "Is it really safe?"]
REFERENCES = [
    ["The old bridge was shut after the storm.", "A small boat took the children to school.", "Is it safe?"],
    ["After the storm, the old bridge was closed.", "A boat brought the children to the school.", "Is that safe?"],
]

words = st.sampled_from(["the", "old", "Bridge", "was", "closed", ".", "Brücke", "3,5"])
sentences = st.lists(words, min_size=1, max_size=9).map(" ".join)


@st.composite
def corpora(draw):
    count, lists = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    first = draw(st.lists(sentences, min_size=count, max_size=count))
    more = [draw(st.lists(sentences | st.none(), min_size=count, max_size=count)) for _ in range(lists - 1)]
    return draw(st.lists(sentences, min_size=count, max_size=count)), [first, *more]


@given(corpora(), st.sampled_from(["13a", "none", "intl", "char"]), st.booleans())
def test_scores_equal_sacrebleu(corpus, tokenize, lowercase):
    hypotheses, references = corpus
    scores = translation_scores(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
    assert scores.bleu == bleu.corpus_score(hypotheses, references).score
    assert scores.chrf == chrf.corpus_score(hypotheses, references).score
    assert (scores.bleu_signature, scores.chrf_signature) == (str(bleu.get_signature()), str(chrf.get_signature()))
    assert scores.sentences == len(hypotheses)
    assert f"|case:{'lc' if lowercase else 'mixed'}|" in scores.bleu_signature
    assert f"|tok:{tokenize}|" in scores.bleu_signature


def test_lower_case_and_tokenisers_change_the_score():
    plain = translation_scores(["THE old bridge was closed."], [["the old bridge was closed."]])
    assert plain.bleu < 100
    lowered = translation_scores(["THE old bridge was closed."], [["the old bridge was closed."]], lowercase=True)
    assert lowered.bleu == pytest.approx(100)
    assert lowered.chrf == pytest.approx(100)
    # without a tokeniser "closed." is one word
    glued = [["the old bridge was closed ."]]
    assert translation_scores(["the old bridge was closed."], glued).bleu == pytest.approx(100)
    assert translation_scores(["the old bridge was closed."], glued, tokenize="none").bleu < 100


@pytest.mark.parametrize("options", [[], ["-lc", "--chrf-lowercase"], ["-tok", "none"]])
def test_scores_equal_the_sacrebleu_command(options, tmp_path):
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    for number, some in enumerate(REFERENCES):
        (tmp_path / f"ref{number}").write_text("\n".join(some) + "\n")
    files = [tmp_path / "ref0", tmp_path / "ref1", "-i", tmp_path / "hyp"]
    shown = ["-m", "bleu", "chrf", "-w", "4", "-f", "text"]
    command = [Path(sys.executable).with_name("sacrebleu"), *files, *shown, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    scores = translation_scores(
        HYPOTHESES, REFERENCES, lowercase="-lc" in options, tokenize="none" if "none" in options else "13a"
    )
    first, second = map(str.strip, done.stdout.splitlines())
    assert first.startswith(f"BLEU|{scores.bleu_signature} = {scores.bleu:.4f} ")
    assert second == f"chrF2|{scores.chrf_signature} = {scores.chrf:.4f}"


@given(st.lists(st.tuples(st.sampled_from("abc"), sentences, sentences), min_size=1, max_size=8))
def test_repeated_sources_are_joined(rows):
    sources, first, second = map(list, zip(*rows, strict=True))
    joined = group_references(sources, [first, second])
    assert len(joined.sources) == len(set(joined.sources)) == len(set(sources))
    for number, (source, places) in enumerate(zip(joined.sources, joined.lines, strict=True)):
        assert all(sources[index] == source for index in places)
        expected = [some[index] for index in places for some in (first, second)]
        references = [some[number] for some in joined.references]
        assert references == expected + [None] * (len(references) - len(expected))
    assert sorted(index for places in joined.lines for index in places) == list(range(len(sources)))
    # sacrebleu accepts references padded with None
    translation_scores(joined.sources, joined.references)


def test_more_references_never_lower_the_score():
    one = translation_scores(["a b c d e", "x y z w v"], [["a b c d f", "x y z w v"]])
    two = translation_scores(["a b c d e", "x y z w v"], [["a b c d f", "x y z w v"], ["a b c d e", None]])
    assert one.bleu < two.bleu == pytest.approx(100)
    assert "nrefs:var" in two.bleu_signature


def test_bad_input():
    score = inspect.unwrap(translation_scores)
    for given_, message in [
        (([], [[]]), "no texts to score"),
        ((["a"], []), "no references"),
        ((["a", "b"], [["a"]]), "2 texts but 1 references in list 0"),
        ((["a", "b"], [["a", "b"], ["a", "b", "c"]]), "2 texts but 3 references in list 1"),
        ((["a", "b"], [["a", None], ["a", None]]), "text 1 has no reference"),
        (("a", [["a"]]), "got a single string"),
        ((["a"], ["a"]), "got a single string"),
    ]:
        with pytest.raises(ValueError, match=message):
            score(*given_)
    with pytest.raises(ValueError, match="no tokenizer 'moses'. Use one of: none, zh, 13a"):
        score(["a"], [["a"]], tokenize="moses")
