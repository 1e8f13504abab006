"""Folders of tiny models to serve."""

import pytest
from support.models import families
from support.models.folders import marian


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    heads = {"bert": [], "classifier": ["ForSequenceClassification"], "reader": ["ForQuestionAnswering"]}
    for name, head in heads.items():
        (folder / name).mkdir()
        families.make("bert", folder / name, *head, **({"num_labels": 3} if name == "classifier" else {}))
    (folder / "marian").mkdir()
    marian(folder / "marian")
    return folder
