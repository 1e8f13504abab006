"""T3.8: translation, summarization and question answering with checkpoints of their families."""

import pytest
from support.models import folders
from support.models.families import make

from clearhead import QuestionAnswerer, TextToText
from clearhead.pipelines.summarizer import summarize

DOCUMENT = "The old bridge was closed after the storm. A small boat took the children to school. " * 8


def test_machine_translation(tmp_path):
    folders.marian(tmp_path, lively=True)
    translator = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    texts = ["The old bridge was closed.", "", "Is it safe?"]
    outputs = translator.generate(texts, beam_size=3, max_new_tokens=6)
    assert len(outputs) == 3
    assert outputs[1] == ""


def test_text_summarization(tmp_path):
    folders.bart(tmp_path, lively=True)
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    summary = summarize(model, DOCUMENT, beam_size=2, max_new_tokens=5)
    assert len(summary.parts) > 1
    assert not any(part.truncated for part in summary.parts)
    assert summary.text == " ".join(part.text.strip() for part in summary.parts if part.text.strip())


@pytest.mark.parametrize("kind", ["span", "generated"])
def test_question_answering(kind, tmp_path):
    if kind == "span":
        make("bert", tmp_path, "ForQuestionAnswering")
    else:
        folders.plain("t5", tmp_path, lively=True)
    answer = QuestionAnswerer.from_pretrained(tmp_path).answer("What was closed?", DOCUMENT)
    assert 0 <= answer.score <= 1
    if kind == "span":
        assert DOCUMENT[answer.start : answer.end] == answer.text != ""
