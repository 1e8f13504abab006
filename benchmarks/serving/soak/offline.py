"""Models to serve, requests to send, and their results computed offline by the same pipelines.

The text encoder, its index and the translator are real. The models of the other endpoints are small and random, and use
the tokenizer of the text encoder.
"""

import base64
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead import EncoderModel, Index, QuestionAnswerer, Reranker, TextClassifier, TextEncoder, TextToText
from clearhead.checkpoints import ENCODER_FAMILIES, new_classifier, new_span_classifier
from clearhead.pipelines.summarizer import summaries
from clearhead.serve.pages.web_pages import report

ENCODER, TRANSLATOR = "all-MiniLM-L6-v2", "tatoeba-en-de"
TOLERANCE = 1e-5
"""Largest difference of a float32 value, absolute or relative."""
PLACES = ["Oslo", "Porto", "Lindau", "Bergen", "Turin", "Ghent", "Graz"]
CAUSES = ["storm", "snow", "flood", "fire", "frost"]
BUILDINGS = ["bridge", "station", "museum", "school", "harbor", "market"]
HOW = {"precision": "float32", "device": "cpu"}


@dataclass(frozen=True)
class Request:
    """A request whose result is known.

    Args:
        kind: the endpoint, or "stream".
        path: path of the route.
        body: JSON body; None for a GET request.
        expected: the required parts of the response: of dicts, the listed keys. Floats and arrays must match within
            `TOLERANCE`.
    """

    kind: str
    path: str
    body: dict[str, Any] | None
    expected: Any


def differs(expected, found):
    """Return whether a part of a response differs from the expected one."""
    if isinstance(expected, np.ndarray):
        if isinstance(found, str):
            found = np.frombuffer(base64.b64decode(found), "<f4")
        found = np.asarray(found, np.float32)
        return found.shape != expected.shape or not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if isinstance(expected, dict):
        return not isinstance(found, dict) or any(
            key not in found or differs(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            not isinstance(found, list)
            or len(found) != len(expected)
            or any(differs(one, other) for one, other in zip(expected, found, strict=True))
        )
    if isinstance(expected, float):
        return not isinstance(found, float | int) or not np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return found != expected


def sentence(generator):
    """Return a random sentence of news."""
    place, cause, building = (generator.choice(words) for words in (PLACES, CAUSES, BUILDINGS))
    return generator.choice(
        [
            f"The {cause} came to {place} on Monday.",
            f"People in {place} could not get to the {building} because of the {cause}.",
            f"The {building} in {place} was closed after the {cause}.",
            f"It is raining in {place}.",
            f"The {building} is old. I would like to see the {building} in {place} again before it is too late.",
        ]
    )


def document(generator, sentences):
    """Return several random sentences as one text."""
    return " ".join(sentence(generator) for _ in range(sentences))


class OfflineModels:
    """Models in a folder, with the pipelines that compute the expected results.

    Args:
        folder: an empty folder for the models that are made here.
    """

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.encoder = TextEncoder.from_pretrained(ENCODER, **HOW)
        self.translator = TextToText.from_pretrained(TRANSLATOR, **HOW)
        tokenizer, family = self.encoder.tokenizer, ENCODER_FAMILIES["bert"]
        config = family.make_config(
            vocab_size=self.encoder.model.config.vocab_size, d_model=64, ffn_hidden=128, num_heads=4, num_layers=2,
            initializer_range=0.3,
        )  # fmt: skip
        base = EncoderModel(config)
        labels = ["praise", "fact", "doubt"]
        self.classifier = TextClassifier(new_classifier(base, family, labels), tokenizer, family, **HOW)
        self.reranker = Reranker(new_classifier(base, family, ["score"]), tokenizer, family, **HOW)
        self.reader = QuestionAnswerer(new_span_classifier(base, family), tokenizer, family, **HOW)
        made = {"classifier": self.classifier, "reranker": self.reranker, "reader": self.reader}
        for name, pipeline in made.items():
            pipeline.save_pretrained(folder / name)
        generator = random.Random(1)
        texts = list(dict.fromkeys(document(generator, 2) for _ in range(300)))
        Index.build(self.encoder, texts, folder / "index", columns={"id": [str(n) for n in range(len(texts))]})
        self.index = Index.open(folder / "index", **HOW)
        self.models = [ENCODER, TRANSLATOR, *(f"{name}={folder / name}" for name in (*made, "index"))]
        # the queue is short, so that also a slow machine computes it while the greedy client pauses
        self.options = ["--task", f"{TRANSLATOR}=translate,summarize", "--queue-tokens", "65536"]

    def requests(self) -> list[Request]:
        """Return ordinary requests to all endpoints."""
        generator = random.Random(2)
        found = []
        for number in range(8):
            found += [
                self.embeddings(generator, 1 + number, "base64" if number % 2 else "float"),
                self._translate(generator, 1 + number % 3, 1 if number % 2 else 5),
                self._summarize(generator, 2 + number % 4),
                self._classify(generator, 1 + number),
                self._rerank(generator, 3 + number),
                self._search(generator),
                self._answer(generator, 3 + 10 * (number % 3), 1 + number % 3),
                self.stream(generator),
            ]
        ids = self.encoder.tokenize([sentence(generator)])[0].ids
        body = {"model": ENCODER, "input": ids, "encoding_format": "float", "dimensions": 100}
        vector = np.asarray(self.encoder.encode([self.encoder.tokenizer.decode(ids)], truncate_dim=100))[0]
        found.append(Request("embeddings", "/v1/embeddings", body, {"data": [{"embedding": vector}]}))
        return [*found, *self._pages(generator), *self._information()]

    def embeddings(self, generator, count, encoding, sentences=None):
        """Return a request for vectors of texts of some sentences; by default of one to six."""
        texts = [document(generator, sentences or generator.randint(1, 6)) for _ in range(count)]
        rows = np.asarray(self.encoder.encode(texts))
        body = {"model": ENCODER, "input": texts, "encoding_format": encoding}
        expected = {"data": [{"index": number, "embedding": row} for number, row in enumerate(rows)]}
        return Request("embeddings", "/v1/embeddings", body, expected)

    def stream(self, generator):
        """Return a request for a streamed translation; the expected events are those before [DONE]."""
        text = sentence(generator)
        events = [
            {"id": token.id, "token": token.token, "text": token.text, "log_prob": token.log_prob}
            for token in self.translator.stream(text)
        ]
        return Request("stream", "/translate", {"text": text, "stream": True}, events)

    def _translate(self, generator, count, beams):
        texts = [sentence(generator) for _ in range(count)]
        found = self.translator.generate(texts, beam_size=beams, return_details=True)
        expected = {"translations": [{"text": one.text, "score": one.score} for one in found]}
        return Request("translate", "/translate", {"text": texts, "beam_size": beams}, expected)

    def _summarize(self, generator, sentences):
        text = document(generator, sentences)
        body = {"text": text, "max_new_tokens": 20, "beam_size": 2}
        (summary,) = summaries(self.translator, [text], max_new_tokens=20, beam_size=2)
        expected = {"summaries": [{"text": summary.text, "parts": len(summary.parts)}]}
        return Request("summarize", "/summarize", body, expected)

    def _classify(self, generator, count):
        texts = [document(generator, generator.randint(1, 3)) for _ in range(count)]
        expected = [
            {"label": one.label, "score": one.probability, "scores": one.probabilities}
            for one in self.classifier.classify(texts)
        ]
        return Request("classify", "/classify", {"text": texts}, {"classifications": expected})

    def _rerank(self, generator, count):
        query, texts = sentence(generator), [document(generator, 2) for _ in range(count)]
        ranked = self.reranker.rank(query, texts, top_k=count - 1)
        expected = [
            {"index": one.index, "relevance_score": one.score, "document": {"text": one.text}} for one in ranked
        ]
        body = {"model": "reranker", "query": query, "documents": texts, "top_n": count - 1, "return_documents": True}
        return Request("rerank", "/v1/rerank", body, {"results": expected})

    def _search(self, generator):
        query = sentence(generator)
        expected = [
            {"index": one.index, "score": one.score, "text": one.text, "columns": dict(one.columns)}
            for one in self.index.search(query, 3)
        ]
        return Request("search", "/search", {"query": query, "top_k": 3}, {"results": expected})

    def _answer(self, generator, sentences, count):
        question, context = f"What happened in {generator.choice(PLACES)}?", document(generator, sentences)
        best = self.reader.answer(question, context, n_best=count)
        expected = [
            {"text": one.text, "score": one.score, "start": one.start, "end": one.end} for one in best.n_best or (best,)
        ]
        body = {"question": question, "context": context, "n_best": count}
        return Request("answer", "/answer", body, {"answers": expected})

    def _pages(self, generator):
        text = sentence(generator)
        for name, pipeline in ((ENCODER, self.encoder), (TRANSLATOR, self.translator)):
            yield Request("view", "/view", {"model": name, "text": text}, report(name, pipeline, text))

    def _information(self):
        names = [model.partition("=")[0] for model in self.models]
        yield Request("models", "/v1/models", None, {"data": [{"id": name} for name in names]})
        yield from (Request("models", f"/v1/models/{name}", None, {"id": name}) for name in names)
        yield Request("health", "/health/ready", None, {"status": "ready"})
        yield Request("health", "/health/live", None, {"status": "alive"})
        yield Request("metrics", "/metrics", None, None)
