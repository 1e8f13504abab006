"""Folders of tiny models to serve."""

import pytest
from support.models import families
from support.models.folders import marian

from clearhead import Index, TextEncoder


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    heads = {"bert": [], "reader": ["ForQuestionAnswering"]}
    heads |= {name: ["ForSequenceClassification"] for name in ("classifier", "reranker")}
    labels = {"classifier": 3, "reranker": 1}
    for name, head in heads.items():
        (folder / name).mkdir()
        families.make("bert", folder / name, *head, **({"num_labels": labels[name]} if name in labels else {}))
    documents = ["the old bridge", "hello world", "closed after the storm", "is this a test"]
    encoder = TextEncoder.from_pretrained(folder / "bert", precision="float32", device="cpu")
    Index.build(encoder, documents, folder / "index", columns={"id": list("abcd")})
    (folder / "marian").mkdir()
    marian(folder / "marian")
    return folder
