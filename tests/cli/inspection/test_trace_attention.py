"""The command `trace --attention LAYER.HEAD`: the attention of one head."""

import itertools
import json
import re

import pytest
import torch
from support.command import clearhead, refused

from clearhead import TextEncoder, TextToText, watch

pytestmark = pytest.mark.slow

TEXT = "The old bridge was closed."
MODEL, TRANSLATOR = "all-MiniLM-L6-v2", "tatoeba-en-de"


def shown(*arguments):
    status, out, err = clearhead("trace", TEXT, *arguments)
    assert (status, err) == (0, "")
    return out


def test_head_of_an_encoder():
    (result,) = json.loads(shown("--model", MODEL, "--attention", "0.2", "--json"))
    encoder = TextEncoder.from_pretrained(MODEL, precision="float32", device="cpu")
    (tokens,) = encoder.tokenize([TEXT])
    with torch.no_grad(), watch(encoder.model) as records:
        encoder.model(torch.tensor([tokens.ids]))
    torch.testing.assert_close(torch.tensor(result["weights"]), records.get(0, 2)[0], atol=1e-5, rtol=0)
    words = ["[CLS]", "the", "old", "bridge", "was", "closed", ".", "[SEP]"]
    assert result["queries"] == result["keys"] == words
    lines = shown("--model", MODEL, "--attention", "0.2").splitlines()
    assert lines[0] == "encoder, layer 0, head 2"
    # this head looks at the token before
    assert [line.split()[:3] for line in lines[2:]] == [[b, "→", a] for a, b in itertools.pairwise(words)]


def test_at_most_four_keys_are_printed():
    result, *lines = shown("--model", MODEL, "--attention", "0.0").splitlines()
    assert result == "encoder, layer 0, head 0"
    counts = [len(re.findall(r" \d\.\d{3}", line)) for line in lines[1:] if "→" in line]
    assert len(counts) >= 7
    assert max(counts) == 4


def test_heads_of_an_encoder_decoder():
    result = json.loads(shown("--model", TRANSLATOR, "--attention", "1.3", "--json"))
    assert [one["part"] for one in result] == ["encoder", "decoder", "cross"]
    translator = TextToText.from_pretrained(TRANSLATOR, precision="float32", device="cpu")
    (best,) = translator.generate([TEXT], beam_size=1, return_details=True)
    (source,) = translator.tokenizer.encode([TEXT])
    target = [translator.model.config.start_id, *best.token_ids[:-1]]
    with torch.no_grad(), watch(translator.model) as records:
        translator.model(torch.tensor([source.ids]), torch.tensor([target]))
    for one in result:
        expected = records.get(1, 3, one["part"])[0]
        torch.testing.assert_close(torch.tensor(one["weights"]), expected, atol=1e-5, rtol=0)
        assert (len(one["queries"]), len(one["keys"])) == expected.shape
    forced = json.loads(shown("--model", TRANSLATOR, "--attention", "1.3", "--target", "Die Brücke", "--json"))
    # a row of the decoder is labeled with the token that it produces
    produced = translator.tokenizer.display_tokens(best.token_ids)
    assert result[1]["queries"] == result[2]["queries"] == produced
    assert result[1]["keys"] == ["<pad>", *produced[:-1]]
    assert forced[1]["keys"] == ["<pad>", "▁Die", "▁Brücke"]
    assert forced[1]["queries"] == ["▁Die", "▁Brücke", "▁war"]
    assert shown("--model", TRANSLATOR, "--attention", "5.0").startswith("encoder, layer 5, head 0")
    assert "decoder" not in shown("--model", TRANSLATOR, "--attention", "5.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention", "0.2"], "requires a text and --model"),
        (["--model", MODEL, "--attention", "2"], "expects LAYER.HEAD, such as 0.3, both from 0; got '2'"),
        (["--model", MODEL, "--attention", "-1.0"], "expects LAYER.HEAD"),
        (["--model", MODEL, "--attention", "6.0"], "no attention in layer 6"),
        (["--model", MODEL, "--attention", "0.12"], "has heads 0 to 11; got"),
        (
            ["--model", MODEL, "--attention", "0.1", "--target", "x"],
            "is an encoder; --target is only for encoder–decoders",
        ),
    ],
)
def test_trace_attention_errors(arguments, message):
    assert message in refused("trace", TEXT, *arguments)
