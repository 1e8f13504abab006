"""Folders of tiny models to serve."""

import pytest
from support import families
from support.folders import marian


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    heads = {"bert": [], "classifier": ["ForSequenceClassification"], "reader": ["ForQuestionAnswering"]}
    for name, head in heads.items():
        (place / name).mkdir()
        families.make("bert", place / name, *head, **({"num_labels": 3} if name == "classifier" else {}))
    (place / "marian").mkdir()
    marian(place / "marian")
    return place
