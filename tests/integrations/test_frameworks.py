"""Embeddings for LangChain and LlamaIndex: their conformance tests, and equal vectors."""

import subprocess
import sys

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from support.models.tiny import make_bert

import clearhead
from clearhead.checkpoints.sentence_transformers import SentenceSettings, write_settings
from clearhead.integrations.langchain import ClearheadEmbeddings
from clearhead.integrations.llama_index import ClearheadEmbedding

TEXTS = ["the old bridge was closed", "hello world", "a test"]
PROMPTS = {"query": "query ", "passage": "passage "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_bert(tmp_path_factory.mktemp("prompts"))
    write_settings(folder, SentenceSettings(prompts=PROMPTS), 32)
    return folder


@pytest.fixture(scope="module")
def encoder(folder):
    return clearhead.TextEncoder.from_pretrained(folder, precision="float32", device="cpu")


@pytest.fixture(autouse=True)
def _given_folder(request, folder):
    if request.instance is not None:
        request.instance.folder = folder


class LangChainModel:
    """Properties that langchain-tests reads."""

    @property
    def embeddings_class(self):
        return ClearheadEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": self.folder, "precision": "float32", "device": "cpu"}


class TestLangChainUnit(LangChainModel, EmbeddingsUnitTests):
    """The standard unit tests of langchain-tests."""


class TestLangChainIntegration(LangChainModel, EmbeddingsIntegrationTests):
    """The standard integration tests of langchain-tests."""


def test_langchain_vectors_are_those_of_the_encoder(encoder):
    embeddings = ClearheadEmbeddings(encoder, normalize=True)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), encoder.encode_document(TEXTS, normalize=True))
    np.testing.assert_allclose(
        embeddings.embed_query(TEXTS[0]), encoder.encode(TEXTS[0], prompt="query ", normalize=True)
    )
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(text) for text in TEXTS])
    assert len(store.similarity_search("hello", k=2)) == 2


def test_llama_index_vectors_are_those_of_the_encoder(folder, encoder):
    model = ClearheadEmbedding(str(folder), precision="float32", device="cpu", encode_options={"normalize": True})
    documents, query = encoder.encode_document(TEXTS, normalize=True), encoder.encode_query(TEXTS[0], normalize=True)
    np.testing.assert_allclose(model.get_text_embedding_batch(TEXTS), documents)
    np.testing.assert_allclose(model.get_text_embedding(TEXTS[1]), documents[1], atol=1e-6)
    np.testing.assert_allclose(model.get_query_embedding(TEXTS[0]), query)
    copied = ClearheadEmbedding.from_dict(model.to_dict())
    np.testing.assert_allclose(copied.get_query_embedding(TEXTS[0]), query)


async def test_llama_index_is_asynchronous(folder):
    model = ClearheadEmbedding(str(folder), precision="float32", device="cpu")
    assert await model.aget_query_embedding("hello") == model.get_query_embedding("hello")
    assert await model.aget_text_embedding("hello") == model.get_text_embedding("hello")
    assert await model.aget_text_embedding_batch(TEXTS) == model.get_text_embedding_batch(TEXTS)


def test_llama_index_retrieves(folder):
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    model = ClearheadEmbedding(str(folder), precision="float32", device="cpu", encode_options={"prompt": ""})
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=model)
    for text in TEXTS:
        (found,) = index.as_retriever(similarity_top_k=1).retrieve(text)
        assert found.node.text == text
        assert found.score == pytest.approx(1)


SCRIPT = """
import sys
import clearhead

clearhead.pipeline, clearhead.TextEncoder.from_pretrained().encode("Hello")
frameworks = ["langchain_core", "llama_index", "sklearn", "mteb", "transformers", "sentence_transformers"]
print([name for name in frameworks if name in sys.modules])
sys.modules.update(dict.fromkeys(frameworks))  # as if they were not installed
for name in ("langchain", "llama_index", "sklearn"):
    try:
        __import__(f"clearhead.integrations.{name}")
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.slow
def test_frameworks_are_imported_on_request_and_a_missing_one_is_named_with_its_extra():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    imported, *messages = done.stdout.splitlines()
    assert imported == "[]"
    assert [message.partition("Install it: ")[2] for message in messages] == [
        f'pip install "clearhead[{extra}]"' for extra in ("langchain", "llama-index", "sklearn")
    ]
