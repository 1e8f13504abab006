"""The API of a real server with tiny models: requests and responses."""

import base64
import concurrent.futures
import itertools
import json

import httpx
import numpy as np
import openai
import pytest
from support import served

from clearhead import Index, QuestionAnswerer, Reranker, TextEncoder, TextToText
from clearhead.pipelines.answering.generative_question_answerer import GenerativeQuestionAnswerer
from clearhead.pipelines.summarizer import summaries

TEXTS = ["the old bridge", "a", "", "closed after the storm"]


@pytest.fixture(scope="module")
def address(folders):
    models = [
        part
        for name in ("bert", "classifier", "reader", "marian", "reranker", "index")
        for part in ("-m", f"{name}={folders / name}")
    ]
    with served.command(*models, "--task", "marian=translate,summarize,answer", "--precision", "float32") as server:
        yield server.address


def post(address, path, body, **options):
    return httpx.post(f"{address}{path}", json=body, timeout=30, **options)


@pytest.mark.slow
def test_openai_client(address, folders):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    expected = TextEncoder.from_pretrained(folders / "bert", precision="float32", device="cpu").encode(TEXTS)
    response = client.embeddings.create(model="bert", input=TEXTS)
    assert [one.index for one in response.data] == [0, 1, 2, 3]
    np.testing.assert_allclose([one.embedding for one in response.data], expected, atol=1e-5, rtol=1e-5)
    assert response.usage.prompt_tokens == response.usage.total_tokens > 8
    (alone,) = client.embeddings.create(model="bert", input=TEXTS[0], encoding_format="float", dimensions=5).data
    assert len(alone.embedding) == 5
    assert [model.id for model in client.models.list()] == [
        "bert",
        "classifier",
        "reader",
        "marian",
        "reranker",
        "index",
    ]
    assert client.models.retrieve("bert").id == "bert"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/gone")


def test_floats_base64_and_token_ids_give_the_same_vectors(address, folders):
    encoder = TextEncoder.from_pretrained(folders / "bert", precision="float32", device="cpu")
    ids = [tokens.ids for tokens in encoder.tokenize(TEXTS[:2])]
    plain_ = post(address, "/v1/embeddings", {"input": TEXTS[:2], "model": "bert"}).json()
    numbers = [one["embedding"] for one in plain_["data"]]
    by_ids = post(address, "/v1/embeddings", {"input": ids, "model": "bert"}).json()
    assert [one["embedding"] for one in by_ids["data"]] == numbers
    (one,) = post(address, "/v1/embeddings", {"input": ids[0], "model": "bert"}).json()["data"]
    assert one["embedding"] == numbers[0]
    packed = post(address, "/v1/embeddings", {"input": TEXTS[:2], "model": "bert", "encoding_format": "base64"}).json()
    for written, row in zip(packed["data"], numbers, strict=True):
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(written["embedding"]), "<f4"), np.float32(row))


@pytest.mark.slow
def test_translations_and_streams_match_offline_results(address, folders):
    offline = TextToText.from_pretrained(folders / "marian", precision="float32", device="cpu")
    options = {"beam_size": 2, "max_new_tokens": 6}
    result = post(address, "/translate", {"text": TEXTS[:2], "model": "marian", **options}).json()
    assert [one["text"] for one in result["translations"]] == offline.generate(TEXTS[:2], **options)
    body = {"text": TEXTS[0], "stream": True, "max_new_tokens": 6}
    with httpx.stream("POST", f"{address}/translate", json=body, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    pieces = [json.loads(line) for line in lines[:-1]]
    assert "".join(piece["text"] for piece in pieces) == offline.generate(TEXTS[:1], beam_size=1, max_new_tokens=6)[0]


@pytest.mark.slow
def test_results_computed_in_parts_match_offline_results(address, folders):
    how = {"precision": "float32", "device": "cpu"}
    generator = TextToText.from_pretrained(folders / "marian", **how)
    reader = QuestionAnswerer.from_pretrained(folders / "reader", **how)
    document = " ".join(f"the {word} bridge was closed after the storm." for word in ("old", "a", "storm", "was") * 8)
    body = {"text": [document, "", "the old bridge"], "max_new_tokens": 4, "beam_size": 2}
    results = post(address, "/summarize", body).json()["summaries"]
    expected = list(summaries(generator, body["text"], max_new_tokens=4, beam_size=2))
    assert results == [{"text": one.text, "parts": len(one.parts)} for one in expected]
    assert [one["parts"] for one in results] == [results[0]["parts"], 0, 1]
    assert results[0]["parts"] > 3
    question = "what was closed?"
    for model, pipeline in (("reader", reader), ("marian", GenerativeQuestionAnswerer(generator))):
        body = {"question": question, "context": document, "model": model, "n_best": 3}
        results = post(address, "/answer", body).json()["answers"]
        expected = pipeline.answer(question, document, n_best=3).n_best
        assert [(one["text"], one["start"], one["end"]) for one in results] == [
            (one.text, one.start, one.end) for one in expected
        ]
        np.testing.assert_allclose([one["score"] for one in results], [one.score for one in expected], rtol=1e-4)
    assert post(address, "/summarize", {"text": " "}).json()["summaries"] == [{"text": "", "parts": 0}]


def test_summaries_answers_and_labels(address):
    result = post(address, "/summarize", {"text": "the old bridge was closed. " * 30, "max_new_tokens": 4}).json()
    assert result["summaries"][0]["parts"] > 1
    context = "the old bridge was closed after the storm"
    result = post(
        address, "/answer", {"question": "what was closed?", "context": context, "model": "reader", "n_best": 2}
    )
    first, second = result.json()["answers"]
    assert context[first["start"] : first["end"]] == first["text"]
    assert first["score"] >= second["score"]
    response = post(address, "/classify", {"text": TEXTS})
    assert response.status_code == 200, response.text
    result = response.json()
    assert result["model"] == "classifier"
    for one in result["classifications"]:
        assert one["score"] == max(one["scores"].values())
        assert sum(one["scores"].values()) == pytest.approx(1)


def test_documents_are_ranked_as_the_pipeline_ranks_them(address, folders):
    documents = ["the old bridge", "hello", "closed after the storm", "the bridge " * 99]
    reranker = Reranker.from_pretrained(folders / "reranker", precision="float32", device="cpu")
    expected = reranker.rank("what was closed", documents)
    body = {"model": "reranker", "query": "what was closed", "documents": documents}
    result = post(address, "/v1/rerank", body).json()
    assert [one["index"] for one in result["results"]] == [one.index for one in expected]
    assert {key for one in result["results"] for key in one} == {"index", "relevance_score"}
    scores = [one["relevance_score"] for one in result["results"]]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-6)
    assert result["usage"]["total_tokens"] == sum(
        len(pair.ids) for pair in reranker.tokenize([("what was closed", text) for text in documents])
    )
    objects = body | {"documents": [{"text": text} for text in documents], "top_n": 2, "return_documents": True}
    result = post(address, "/v1/rerank", objects).json()["results"]
    assert [one["document"] for one in result] == [{"text": one.text} for one in expected[:2]]


@pytest.mark.slow
def test_found_documents_are_those_of_the_index(address, folders):
    expected = Index.open(folders / "index").search("the bridge", top_k=3)
    result = post(address, "/search", {"query": "the bridge", "top_k": 3}).json()
    assert result["model"] == "index"
    assert [(one["index"], one["text"], one["columns"]) for one in result["results"]] == [
        (one.index, one.text, one.columns) for one in expected
    ]
    scores = [one["score"] for one in result["results"]]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status", "message", "param"),
    [
        ("/search", {"query": " "}, 422, "query: must not be blank", "query"),
        ("/search", {"query": "hello", "top_k": 0}, 422, "top_k: ", "top_k"),
        ("/search", {"query": "long " * 99}, 400, "tokens; expected at most 36, the maximum length", None),
        ("/v1/embeddings", {"input": "a", "model": "gone"}, 404, "loaded: bert, classifier, reader, marian", None),
        (
            "/v1/embeddings",
            {"input": "a", "model": "marian"},
            400,
            "does not support embed; it supports translate",
            None,
        ),
        ("/v1/embeddings", {"input": "a"}, 422, "model: required field is missing", "model"),
        ("/v1/embeddings", {"input": 3, "model": "bert"}, 422, "input: ", "input"),
        ("/v1/embeddings", {"input": [], "model": "bert"}, 422, "input: ", "input"),
        ("/v1/embeddings", {"input": [["a"], 3], "model": "bert"}, 422, "input: ", "input"),
        ("/v1/embeddings", {"input": [10**6], "model": "bert"}, 400, "token ids must be in the range 0 to", None),
        ("/v1/embeddings", {"input": "a", "model": "bert", "dimensions": 0}, 422, "dimensions: ", "dimensions"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "dimensions": 999}, 400, "vectors have 32 dimensions", None),
        ("/v1/embeddings", {"input": "a", "model": "bert", "colour": 1}, 422, "colour: unknown field", "colour"),
        (
            "/v1/embeddings",
            {"input": "long " * 99, "model": "bert"},
            400,
            "takes at most 36; set truncate to true",
            None,
        ),
        ("/translate", {"text": "a", "beam_size": 99}, 422, "beam_size: ", "beam_size"),
        ("/translate", {"text": "a", "source_lang": "xx"}, 400, "xx", None),
        ("/translate", {"text": "a", "source_lang": "xx", "stream": True}, 400, "xx", None),
        ("/translate", {"text": ["a", "b"], "stream": True}, 400, "a stream takes one text", None),
        ("/translate", {"text": "long " * 99}, 400, "takes at most 60; set truncate to true", None),
        ("/translate", {"text": "long " * 99, "stream": True}, 400, "takes at most 60; set truncate to true", None),
        ("/translate", {"text": ["a"] * 2048, "beam_size": 16}, 400, "send fewer texts", None),
        ("/summarize", {"text": "a", "target_lang": "xx"}, 400, "xx", None),
        ("/classify", {"text": ["a", "long " * 99]}, 400, "text 1: the text has 398 tokens", None),
        ("/classify", {"text": "long " * 199_999}, 400, "has more than 4096 tokens; this model takes at most 36", None),
        (
            "/translate",
            {"text": "long " * 199_999},
            400,
            "has more than 4096 tokens; this model takes at most 60",
            None,
        ),
        ("/v1/embeddings", {"input": "long " * 199_999, "model": "bert"}, 400, "has more than 4096 tokens", None),
        ("/view", {"text": "long " * 99, "model": "bert"}, 400, "takes at most 36; send a shorter text", None),
        ("/view", {"text": " \t", "model": "marian"}, 422, "text: must not be blank", "text"),
        ("/answer", {"question": "", "context": "a"}, 422, "question: must not be blank", "question"),
        ("/answer", {"question": "a", "context": " \t"}, 422, "context: must not be blank", "context"),
        ("/answer", {"question": "a " * 50, "context": "a"}, 400, "the question has ", None),
        ("/classify", {"text": "a", **{f"key{n}": 1 for n in range(99)}}, 422, "the body has 100 fields", "body"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "dimensions": "5"}, 422, "dimensions: ", "dimensions"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "dimensions": True}, 422, "dimensions: ", "dimensions"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "dimensions": 5.5}, 422, "dimensions: ", "dimensions"),
        ("/v1/embeddings", {"input": [5.5], "model": "bert"}, 422, "input: ", "input"),
        ("/v1/embeddings", {"input": [True], "model": "bert"}, 422, "input: ", "input"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "truncate": "yes"}, 422, "truncate: ", "truncate"),
        ("/v1/embeddings", {"input": "a", "model": "bert", "truncate": 1}, 422, "truncate: ", "truncate"),
        ("/translate", {"text": "a", "beam_size": "2"}, 422, "beam_size: ", "beam_size"),
        ("/translate", {"text": "a", "beam_size": True}, 422, "beam_size: ", "beam_size"),
        ("/translate", {"text": "a", "length_penalty": "1"}, 422, "length_penalty: ", "length_penalty"),
        ("/translate", {"text": "a", "stream": "on"}, 422, "stream: ", "stream"),
        ("/answer", {"question": "a", "context": "a", "n_best": "2"}, 422, "n_best: ", "n_best"),
        ("/translate", {"text": "a", "source_lang": "x" * 300}, 422, "source_lang: ", "source_lang"),
        ("/translate", {"text": "a", "model": "x" * 300}, 422, "model: ", "model"),
        ("/translate", {"text": "a", "x" * 300: 1}, 422, "unknown field", "x" * 200),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b", " "]},
            422,
            "document 1 is blank; expected words",
            "documents",
        ),
        ("/v1/rerank", {"query": "a", "documents": [{"text": ""}]}, 422, "document 0 is blank", "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", 3]}, 422, "documents.1", "documents.1"),
        ("/v1/rerank", {"query": "a", "documents": []}, 422, "documents: ", "documents"),
        ("/v1/rerank", {"query": " ", "documents": ["b"]}, 422, "query: must not be blank", "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 422, "top_n: ", "top_n"),
        ("/v1/rerank", {"query": "long " * 99, "documents": ["b"]}, 400, "the query has 396 tokens", None),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b", "long " * 99], "truncate": False},
            400,
            "document 1 is too long: with the query it has more than 36 tokens; set truncate to true",
            None,
        ),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "model": "classifier"},
            400,
            "does not support rerank; it supports classify",
            None,
        ),
        ("/nowhere", {}, 404, "Not Found", None),
    ],
)
def test_errors_name_the_problem(address, path, body, status, message, param):
    response = post(address, path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
    assert response.headers["x-request-id"]


@pytest.mark.slow
def test_integral_floats_are_accepted_as_integers(address):
    for body in ({"input": "a", "dimensions": 5.0}, {"input": [2.0, 3, 4]}, {"input": [[2, 3.0]], "dimensions": 5}):
        assert post(address, "/v1/embeddings", {"model": "bert", **body}).status_code == 200
    assert post(address, "/translate", {"text": "a", "length_penalty": 1, "max_new_tokens": 2.0}).status_code == 200


@pytest.mark.parametrize("body", [b'{"text": "\xff"}', b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}", b"{"])
def test_unreadable_body_is_422(address, body):
    response = httpx.post(f"{address}/translate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "body"


def test_deeply_nested_numbers_are_422(address):
    body = b'{"model": "bert", "input": ' + b"[1.0," * 700 + b"[1.0]" + b"]" * 700 + b"}"
    response = httpx.post(f"{address}/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "input")


@pytest.mark.slow
def test_encoder_can_view_blank_text(address):
    assert post(address, "/view", {"text": " ", "model": "bert"}).status_code == 200


def test_truncate_option_truncates_long_texts(address):
    response = post(address, "/v1/embeddings", {"input": "long " * 99, "model": "bert", "truncate": True})
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 36
    long, cut = "closed " * 99, "closed " * 34
    result = post(address, "/classify", {"text": [long, cut], "truncate": True}).json()["classifications"]
    # a small matmul may sum in another order, so the last digit differs on some processors
    assert result[0]["scores"] == pytest.approx(result[1]["scores"], abs=1e-6)
    body = {"text": "the bridge " * 99, "truncate": True, "max_new_tokens": 3}
    assert post(address, "/translate", body).json()["translations"][0]["text"]
    assert post(address, "/translate", {**body, "stream": True}).text.endswith("data: [DONE]\n\n")


def test_truncated_token_ids_keep_the_final_special_token(address, folders):
    encoder = TextEncoder.from_pretrained(folders / "bert", precision="float32", device="cpu")
    (whole,) = encoder.tokenizer.encode(["closed " * 99])
    (cut,) = encoder.tokenize(["closed " * 99])
    vectors = [
        post(address, "/v1/embeddings", {"input": ids, "model": "bert", "truncate": True}).json()["data"][0]
        for ids in (whole.ids, cut.ids)
    ]
    assert vectors[0] == vectors[1]


@pytest.mark.slow
def test_concurrent_clients_get_their_own_results(address, folders):
    encoder = TextEncoder.from_pretrained(folders / "bert", precision="float32", device="cpu")
    texts = [" ".join(words) for words in itertools.permutations(("old", "bridge", "closed", "storm", "a"), 3)]
    expected = encoder.encode(texts)

    def one(number):
        result = post(address, "/v1/embeddings", {"input": texts[number], "model": "bert"}).json()["data"]
        return [one["embedding"] for one in result]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        result = np.concatenate(list(pool.map(one, range(len(texts)))))
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)
    assert len(np.unique(expected.round(4), axis=0)) == len(texts)


def test_wrong_method_is_405(address):
    assert httpx.get(f"{address}/translate").status_code == 405


def test_models_are_listed_with_their_tasks(address):
    models = httpx.get(f"{address}/v1/models").json()["data"]
    assert {model["id"]: model["tasks"] for model in models} == {
        "bert": ["embed", "view"],
        "classifier": ["classify"],
        "reader": ["answer"],
        "marian": ["translate", "summarize", "answer", "view"],
        "reranker": ["rerank"],
        "index": ["search"],
    }


@pytest.mark.slow
def test_health_metrics_and_request_ids(address):
    assert httpx.get(f"{address}/health/live").json() == {"status": "alive"}
    assert httpx.get(f"{address}/health/ready").json() == {"status": "ready"}
    for path in ("live", "ready"):
        head = httpx.head(f"{address}/health/{path}")
        assert (head.status_code, head.content) == (200, b"")
    response = httpx.get(f"{address}/health/live", headers={"x-request-id": "my-id.1"})
    assert response.headers["x-request-id"] == "my-id.1"
    other = httpx.get(f"{address}/health/live", headers={"x-request-id": "no good\tid"})
    assert other.headers["x-request-id"] != "no good\tid"
    post(address, "/translate", {"text": "a", "stream": True, "max_new_tokens": 2})
    assert httpx.request("BREW", f"{address}/translate").status_code == 405
    text = httpx.get(f"{address}/metrics").text
    assert "BREW" not in text
    assert 'method="other",path="/translate",status="405"' in text
    assert 'clearhead_tokens_total{part="decoder"}' in text
    for name in (
        "requests_total",
        "streams_total",
        "request_seconds_bucket",
        "batch_jobs_bucket",
        "tokens_total",
        "queue_tokens",
    ):
        assert f"clearhead_{name}" in text
