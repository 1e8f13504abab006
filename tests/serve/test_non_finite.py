"""A model that overflows: only the client that sent the text gets status 500, with the text."""

import concurrent.futures

import httpx
import pytest
from support import served
from support.models import families, overflow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overflow")
    heads = {"bert": [], "reader": ["ForQuestionAnswering"]}
    heads |= {name: ["ForSequenceClassification"] for name in ("classifier", "reranker")}
    for name, head in heads.items():
        (folder / name).mkdir()
        families.make("bert", folder / name, *head, **({"num_labels": 1} if name == "reranker" else {}))
        overflow.at_word(folder / name, "storm")
    (folder / "marian").mkdir()
    overflow.translator(folder / "marian")
    models = {name: folder / name for name in (*heads, "marian")}
    tasks = ["marian=translate,summarize,answer"]
    with served.server(models, tasks=tasks) as one:
        yield one


REQUESTS = {
    "embeddings": ("/v1/embeddings", {"model": "bert", "input": ["hello", "after the storm"]}),
    "base64": ("/v1/embeddings", {"model": "bert", "input": ["after the storm"], "encoding_format": "base64"}),
    "translate": ("/translate", {"model": "marian", "text": ["the storm"], "max_new_tokens": 3}),
    "summarize": ("/summarize", {"model": "marian", "text": ["the storm"], "max_new_tokens": 3}),
    "answer": ("/answer", {"model": "reader", "question": "is this a test", "context": "after the storm"}),
    "write": ("/answer", {"model": "marian", "question": "is this a test", "context": "after the storm"}),
    "classify": ("/classify", {"model": "classifier", "text": ["hello", "after the storm"]}),
    "rerank": ("/v1/rerank", {"model": "reranker", "query": "hello", "documents": ["hello", "after the storm"]}),
    "view": ("/view", {"model": "bert", "text": "after the storm"}),
    "view of a translation": ("/view", {"model": "marian", "text": "the storm"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_response_is_500_with_the_text(server, name):
    path, body = REQUESTS[name]
    response = httpx.post(f"{server.address}{path}", json=body, timeout=60)
    assert response.status_code == 500, response.text
    error = response.json()["error"]
    assert "NaN or infinity" in error["message"]
    assert "the storm" in error["message"]
    assert f"model {body['model']} " in error["message"]
    assert (error["type"], error["code"]) == ("server_error", "non_finite")
    assert "/" not in error["message"].replace("--precision", "")
    assert "storm" not in server.log_text()


def test_stream_ends_with_the_error(server):
    body = {"model": "marian", "text": "the storm", "stream": True, "max_new_tokens": 3}
    response = httpx.post(f"{server.address}/translate", json=body, timeout=60)
    event = response.text.split("\n\n")[0]
    assert event.startswith("event: error\n")
    assert "NaN or infinity" in event
    assert "NaN," not in response.text
    assert "storm" not in server.log_text()


def test_only_the_client_whose_text_overflows_gets_the_error(server):
    def embed(text):
        return httpx.post(f"{server.address}/v1/embeddings", json={"model": "bert", "input": text}, timeout=60)

    texts = ["hello world", "after the storm"] * 10
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        for text, response in zip(texts, pool.map(embed, texts), strict=True):
            assert response.status_code == (500 if "storm" in text else 200)
            if response.status_code == 500:
                assert "hello" not in response.text
            else:
                vector = overflow.strict_json(response.text)["data"][0]["embedding"]
                assert all(abs(number) < 10 for number in vector)
