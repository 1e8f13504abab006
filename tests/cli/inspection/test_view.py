"""The command `view`: its output matches `translate` and `trace`."""

import json
import re

import pytest
import torch
from support.command import clearhead, refused, started
from support.models import folders

from clearhead import TextToText, masks
from clearhead.inspection.report import collect

TEXT = "The old bridge was closed."
LANGUAGES = {"nllb": ("deu_Latn", "fra_Latn"), "mbart50": ("de_DE", "fr_XX"), "mbart": ("de_DE", "fr_XX")}


def written(folder, **settings):
    """Write a generation config into the checkpoint."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.fixture(scope="module", params=sorted(LANGUAGES))
def multilingual(request, tmp_path_factory):
    """Tiny random multilingual model, with two languages."""
    folder = tmp_path_factory.mktemp(request.param)
    folders.plain(request.param, folder, lively=True)
    written(folder, min_new_tokens=3, max_new_tokens=6)
    return folder, *LANGUAGES[request.param]


def shown(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8")).group(1))


def viewed(folder, tmp_path, *arguments):
    status, _, err = clearhead("view", TEXT, "--model", folder, "-o", tmp_path / "a.html", *arguments)
    assert status == 0, err
    return shown(tmp_path / "a.html")


@pytest.mark.slow
def test_view_of_a_multilingual_model_matches_translate(multilingual, tmp_path):
    folder, german, french = multilingual
    translator = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    assert "Choose the target" in refused("view", TEXT, "--model", folder, "-o", tmp_path / "a.html")
    for source, target in ((None, german), (german, french)):
        options = [] if source is None else ["--source-lang", source]
        data = viewed(folder, tmp_path, "--target-lang", target, *options)
        (best,) = translator.generate([TEXT], source_lang=source, target_lang=target, return_details=True)
        assert data["output"] == best.text
        assert [one["token"] for one in data["output_tokens"]] == list(best.tokens)
        assert data["outputs"][0]["score"] == pytest.approx(best.score, abs=1e-5)
        assert target in data["target"][:2]
        assert (source or {"deu_Latn": "eng_Latn"}.get(german, "en_XX")) in data["source"]


@pytest.mark.slow
def test_trace_accepts_languages(multilingual):
    folder, german, _ = multilingual
    translator = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    (best,) = translator.generate([TEXT], target_lang=german, beam_size=1, return_details=True)
    options = ["--model", folder, "--target-lang", german]
    status, out, err = clearhead("trace", TEXT, *options)
    assert status == 0, err
    headings = [line for line in out.splitlines() if line.startswith("decoder step")]
    tokens = [line.split(" → ")[1].split()[0] for line in headings]
    assert tokens == list(best.tokens[:3])
    encoder = next(line for line in out.splitlines() if line.startswith("encoder"))
    assert ("eng_Latn" if "Latn" in german else "en_XX") in encoder
    looked = json.loads(clearhead("trace", TEXT, *options, "--attention", "0.0", "--json")[1])
    assert looked[1]["keys"][1:4] == list(best.tokens[: len(looked[1]["keys"]) - 1][:3])
    assert looked[1]["queries"][:-1] == looked[1]["keys"][1:]
    forced = json.loads(clearhead("trace", TEXT, *options, "--attention", "0.0", "--target", "Die Br", "--json")[1])
    assert german in forced[1]["keys"][:2]
    assert "Choose the target" in refused("trace", TEXT, "--model", folder)


def test_languages_of_an_encoder_are_rejected(tiny_bert):
    message = "is an encoder; --source-lang and --target-lang are only for encoder–decoders"
    assert message in refused("view", TEXT, "--model", tiny_bert, "--target-lang", "de")
    assert message in refused("trace", TEXT, "--model", tiny_bert, "--source-lang", "de")
    assert "--source-lang and --target-lang require --model" in refused("trace", TEXT, "--target-lang", "de")


def test_beam_size_of_an_encoder_is_rejected(tiny_bert, tmp_path):
    arguments = ["view", TEXT, "--model", tiny_bert, "--beam-size", "3", "-o", tmp_path / "a.html"]
    assert "is an encoder; --beam-size is only for encoder–decoders" in refused(*arguments)


@pytest.mark.slow
def test_default_beam_size_is_that_of_the_checkpoint(tmp_path):
    folders.marian(tmp_path, lively=True)
    written(tmp_path, min_new_tokens=4, max_new_tokens=8)
    translator = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    for options, beams in (
        ([], translator.generation_config.beam_size),
        (["--beam-size", "3"], 3),
        (["--beam-size", "1"], 1),
    ):
        data = viewed(tmp_path, tmp_path, *options)
        (best,) = translator.generate([TEXT], beam_size=beams, return_details=True)
        assert len(data["outputs"]) == max(map(len, data["tree"])) == beams
        assert data["output"] == best.text
        assert [one["token"] for one in data["output_tokens"]] == list(best.tokens)


def test_beam_scores_match_the_search_with_forced_and_forbidden_tokens(tmp_path):
    folders.marian(tmp_path, lively=True)
    written(tmp_path, min_new_tokens=4, max_new_tokens=8)
    translator = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    (plain,) = translator.generate([TEXT], return_details=True)
    forbidden = plain.token_ids[1]
    translator.generation_config = translator.generation_config.updated(
        forced_bos_token_id=7, bad_words_ids=[[forbidden]], repetition_penalty=1.3
    )
    for beams in (4, 1):
        data = collect.collect("marian", translator, TEXT, beam_size=beams)
        (best,) = translator.generate([TEXT], beam_size=beams, return_details=True)
        first = data["tree"][0]
        assert [(node["id"], node["from"], node["log_prob"], node["total"]) for node in first] == [(7, 0, 0.0, 0.0)]
        assert [other["log_prob"] for other in first[0]["alternatives"]] == [0.0]
        path = [node for column in data["tree"] for node in column if node["best"]]
        assert [node["log_prob"] for node in path] == pytest.approx(best.log_probs[: len(path)], abs=1e-5)
        assert [node["id"] for node in path] == list(best.token_ids[: len(path)])
        assert len(path) >= len(best.token_ids) - 1
        assert forbidden not in {node["id"] for column in data["tree"] for node in column}
        assert "Infinity" not in json.dumps(data)


def test_unwritable_output_is_reported_before_the_model_runs(tmp_path):
    for output, message in ((tmp_path / "no" / "a.html", "no does not exist"), (tmp_path, "is a folder")):
        err = refused("view", TEXT, "--model", "no/such-model", "-o", output)
        assert message in err
        assert ".part" not in err


@pytest.mark.slow
def test_unknown_attention_map_is_rejected(tiny_bert, tmp_path):
    path = tmp_path / "a.html"
    for options, message in (
        ("encoder.99.99", "no attention map encoder.99.99; the last ones are encoder.2.3"),
        ("cross.0.0", "no attention map cross.0.0"),
        ("encoder.1", "got 'encoder.1'"),
        ("encoder.².0", "got 'encoder.².0'"),
    ):
        assert message in refused("view", TEXT, "--model", tiny_bert, "--full-maps", options, "-o", path)
    status, _, err = started("view", TEXT, "--model", tiny_bert, "--full-maps", "encoder.2.3", "-o", path)
    assert status == 0, err
    assert shown(path)["attention"][2]["heads"][3]["head"] == 3


def test_first_token_is_the_target_language(multilingual):
    """The attention maps and values of the page match the generated ids, including languages."""
    folder, german, _ = multilingual
    translator = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    data = collect.collect("m", translator, TEXT, target_lang=german, beam_size=2)
    _, prepared = translator.prepare(TEXT, target_lang=german)
    (best,) = translator.generate([TEXT], target_lang=german, beam_size=2, return_details=True)
    target = torch.tensor([[*prepared.source.decoder_prefix, *best.token_ids]])
    ids = torch.tensor([prepared.source.ids])
    with torch.inference_mode():
        chances = translator.model(ids, target[:, :-1], masks.padding(torch.ones_like(ids, dtype=torch.bool)))
    chosen = chances[0].log_softmax(-1)[-len(best.token_ids) :].gather(1, torch.tensor(best.token_ids)[:, None])
    assert [one["log_prob"] for one in data["output_tokens"]] == pytest.approx(chosen[:, 0].tolist(), abs=1e-4)
