"""Folders of tiny models for a server: one for each task, and an index."""

from clearhead import Index, TextEncoder
from support.models import families
from support.models.folders import marian

LABELS = {"classifier": 3, "reranker": 1}


def write_models(folder):
    """Write the models and the index into a folder; return the folder."""
    heads = {"bert": [], "reader": ["ForQuestionAnswering"]}
    heads |= {name: ["ForSequenceClassification"] for name in LABELS}
    for name, head in heads.items():
        (folder / name).mkdir()
        families.make("bert", folder / name, *head, **({"num_labels": LABELS[name]} if name in LABELS else {}))
    documents = ["the old bridge", "hello world", "closed after the storm", "is this a test"]
    encoder = TextEncoder.from_pretrained(folder / "bert", precision="float32", device="cpu")
    Index.build(encoder, documents, folder / "index", columns={"id": list("abcd")})
    (folder / "marian").mkdir()
    marian(folder / "marian")
    return folder
