"""Every command with --precision and --strict refuses to compute in another precision."""

import inspect

import pytest
from support.command import clearhead
from support.models import folders
from support.models.tiny import make_bert
from transformers import BertForSequenceClassification

from clearhead.cli.main import app

# command -> model and arguments
STRICT = {
    "encode": ("bert", "encode hello -m {0}"),
    "index": ("bert", "index {0}/../documents.txt -m {0} --output {0}/../index"),
    "classify": ("classifier", "classify hello -m {0}"),
    "translate": ("marian", "translate hello -m {0}"),
    "summarize": ("marian", "summarize hello -m {0}"),
    "rerank": ("reranker", "rerank hello {0}/../documents.txt -m {0}"),
    "serve": ("bert", "serve -m {0} --port 0"),
}


def _strict_commands(group):
    for command in group.registered_commands:
        if {"precision", "strict"} <= set(inspect.signature(command.callback).parameters):
            yield command.name or command.callback.__name__
    for inner in group.registered_groups:
        yield from _strict_commands(inner.typer_instance)


def test_every_strict_command_is_listed_here():
    assert set(_strict_commands(app)) == set(STRICT)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models whose widths are not multiples of 16, so that they cannot run in 8 bits."""
    folder = tmp_path_factory.mktemp("strict")
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2}
    make_bert(folder / "bert", **sizes)
    make_bert(folder / "classifier", model_class=BertForSequenceClassification, **sizes)
    make_bert(folder / "reranker", model_class=BertForSequenceClassification, num_labels=1, **sizes)
    (folder / "documents.txt").write_text("Hello.\n")
    (folder / "marian").mkdir()
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    folders.marian(folder / "marian", d_model=24, encoder_ffn_dim=40, decoder_ffn_dim=40, **heads)
    return folder


@pytest.mark.parametrize("name", STRICT)
def test_command_refuses_another_precision(models, name):
    model, arguments = STRICT[name]
    status, out, err = clearhead(*arguments.format(models / model).split(), "--precision", "int8", "--strict")
    assert (status, out) == (1, "")
    assert "Computing in" not in err
    line = err.splitlines()[-1]
    assert line.startswith("clearhead: error: ")
    assert "int8 is not available: the widths of this model's layers are not multiples of 16." in line
    assert "Use another precision, such as " in line
