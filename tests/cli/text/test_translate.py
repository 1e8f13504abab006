"""The commands `translate`, `summarize` and a generative `answer`."""

import json
import shutil

import pytest
from support.command import clearhead, refused, started
from support.models import folders

LINES = "The old bridge was closed.\n\nA small boat took the children.\nIs it safe?\n"


@pytest.fixture(scope="module")
def expected(marian):
    from clearhead import TextToText

    model = TextToText.from_pretrained(marian, precision="float32", device="cpu")
    return model.generate(
        LINES.split("\n")[:-1], beam_size=3, max_new_tokens=6, return_details=True, num_return_sequences=2
    )


@pytest.mark.slow
def test_one_output_line_per_input_line(marian, expected, tmp_path):
    (tmp_path / "in.txt").write_text(LINES)
    options = ["--model", marian, "--beam-size", 3, "--max-new-tokens", 6, "--precision", "float32"]
    status, out, err = started("translate", *options, tmp_path / "in.txt")
    num_truncated = sum(not one.complete for one in expected)
    assert (status, err.count("\n")) == (0, num_truncated > 0)
    assert not num_truncated or f"{num_truncated} of 4 outputs were truncated at the maximum length" in err
    assert out.split("\n") == [*(one.text for one in expected), ""]
    status, out, _ = clearhead("translate", *options, "--n-best", 2, stdin=LINES.encode())
    assert status == 0
    assert out.split("\n") == [*("\t".join(one.text for one in line.n_best or (line,)) for line in expected), ""]


@pytest.mark.slow
def test_json_and_prefixes(marian, tmp_path):
    (tmp_path / "prefixes").write_text("Die alte\n\n\nIst sie\n")
    options = ["--prefix", tmp_path / "prefixes", "--json", "--max-new-tokens", 5, "--n-best", 2, "--beam-size", 2]
    status, out, _ = clearhead("translate", "-m", marian, *options, "--precision", "float32", stdin=LINES.encode())
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"].startswith(text) for row, text in zip(rows, ["Die alte", "", "", "Ist sie"], strict=True)] == [
        True
    ] * 4
    for row in rows:
        assert len(row["tokens"]) == len(row["token_ids"]) == len(row["log_probs"])
    assert rows[1]["tokens"] == []
    assert len(rows[0]["n_best"]) == 2
    assert rows[0]["n_best"][0]["score"] == rows[0]["score"] >= rows[0]["n_best"][1]["score"]
    error = refused_after(marian, "--prefix", tmp_path / "prefixes", stdin=b"one line\n")
    assert f"{tmp_path / 'prefixes'}: each text has a prefix; there are more prefixes than the 1 texts" in error


def refused_after(model, *options, **more):
    """Return the last line on standard error of a command that fails after its first outputs."""
    status, _, err = clearhead("translate", "--model", model, "--max-new-tokens", 3, *options, **more)
    assert status == 1
    return err.splitlines()[-1]


def test_line_that_is_too_long(marian, tmp_path):
    (tmp_path / "in.txt").write_text("hi\n" + "storm " * 200 + "\n")
    options = ["--model", marian, "--max-new-tokens", 3, tmp_path / "in.txt"]
    status, out, err = clearhead("translate", *options)
    assert status == 0
    assert out.count("\n") == 2
    output = (
        f"clearhead: {tmp_path / 'in.txt'}, line 2 is longer than the 60 tokens that this model takes: it was truncated"
    )
    assert err.split("\n")[0] == output
    assert "in.txt, line 2 is longer than the 60 tokens" in refused("translate", *options, "--strict")


@pytest.mark.slow
def test_bad_input_is_a_one_line_error(marian, tiny_bert, tmp_path):
    (tmp_path / "in.txt").write_text(LINES)
    file = tmp_path / "in.txt"
    assert "an encoder without a decoder" in refused("translate", "--model", tiny_bert, file)
    status, out, err = clearhead("translate", "--model", marian, file, "--beam-size", 0)
    assert (status, out) == (2, "")
    assert "Invalid value for '--beam-size': Input should be greater than or equal to 1" in err
    assert "translates between fixed languages" in refused("translate", "--model", marian, file, "--target-lang", "de")
    shutil.copytree(marian, tmp_path / "broken")
    (tmp_path / "broken" / "target.spm").unlink()
    assert "has no target.spm" in refused("translate", "--model", tmp_path / "broken", file)
    (tmp_path / "broken" / "generation_config.json").write_text('{"num_beams": "4", "min_length": 3}')
    shutil.copy(marian / "target.spm", tmp_path / "broken")
    assert "generation_config.json: beam_size must be a whole number" in refused(
        "translate", "--model", tmp_path / "broken", file
    )
    lengths = ["--min-new-tokens", 9, "--max-new-tokens", 5]
    assert "min_new_tokens=9 is more than max_new_tokens=5" in refused("translate", "--model", marian, file, *lengths)
    assert "no such file" in refused("translate", "--model", marian, tmp_path / "absent")


def test_unknown_language_lists_the_known_ones(tmp_path):
    folders.plain("mbart", tmp_path)
    options = ["--model", tmp_path, "--max-new-tokens", 4]
    message = refused("translate", *options, "--target-lang", "xx", stdin=b"hi\n")
    assert "does not support the language 'xx'. Use one of: ar_AR, cs_CZ, de_DE" in message
    status, out, _ = clearhead(
        "translate", *options, "--source-lang", "en_XX", "--target-lang", "de_DE", stdin=b"hi\n\n"
    )
    assert status == 0
    assert out.count("\n") == 2


@pytest.mark.slow
def test_summaries_of_long_documents(tmp_path):
    task = {"prefix": "summarize: ", "num_beams": 2, "max_length": 8}
    model = tmp_path / "t5"
    model.mkdir()
    folders.plain("t5", model, lively=True, task_specific_params={"summarization": task})
    config = json.loads((model / "tokenizer_config.json").read_text()) | {"model_max_length": 30}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "long.txt").write_text("The old bridge was closed. " * 6 + "\n\nNobody came.\n")
    (tmp_path / "short.txt").write_text("The old bridge.\n")
    (tmp_path / "empty.txt").write_text("\n")
    files = [tmp_path / name for name in ("long.txt", "short.txt", "empty.txt")]
    status, out, err = started("summarize", "--model", model, *files, "--precision", "float32")
    assert status == 0
    assert out.count("\n") == 3
    assert out.split("\n")[2] == ""
    first, second, *rest = [line for line in err.splitlines() if "outputs were truncated" not in line]
    assert rest == []
    assert first == f"clearhead: {files[2]} contains no text"
    assert second.startswith(f"{files[0]}: ")
    assert "exceed the model's limit of 30; split between sentences into" in second
    status, out, _ = clearhead("summarize", "--model", model, *files, "--precision", "float32", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [len(row["parts"]) > 1 for row in rows] == [True, False, False]
    assert rows[0]["text"] == " ".join(part["text"].strip() for part in rows[0]["parts"] if part["text"].strip())
    assert not any(part["truncated"] for row in rows for part in row["parts"])
    status, out, _ = clearhead("answer", "--model", model, "--question", "What?", "--context", files[0], "--json")
    assert status == 0
    assert set(json.loads(out)) == {"text", "score", "start", "end"}
    assert "empty" in refused("answer", "--model", model, "--question", "What?", "--context", "-", stdin=b"")
