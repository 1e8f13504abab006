"""Requests drawn from the server's own OpenAPI document: never a 5xx, and what comes back is what it promises."""

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support import families, served
from support.folders import marian

CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    kinds = {"bert": [], "classifier": ["ForSequenceClassification"], "reader": ["ForQuestionAnswering"]}
    for name, head in kinds.items():
        (place / name).mkdir()
        families.make("bert", place / name, *head)
    (place / "marian").mkdir()
    marian(place / "marian")
    models = [part for name in (*kinds, "marian") for part in ("-m", f"{name}={place / name}")]
    with served.server(*models) as (address, _):
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


OPERATIONS = [
    *(f"GET {path}" for path in ("/health/live", "/health/ready", "/metrics", "/v1/models")),
    *(f"POST {path}" for path in ("/v1/embeddings", "/translate", "/summarize", "/answer", "/classify", "/view")),
]


def test_all_operations_are_tried(api):
    told = [f"{one.ok().method.upper()} {one.ok().path}" for one in api.get_all_operations()]
    assert sorted(told) == sorted(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_it_does_as_it_says(api, operation):
    method, path = operation.split()

    @given(case=api[path][method].as_strategy())
    @settings(max_examples=25, deadline=None)
    def tried(case):
        case.call_and_validate(checks=CHECKS)

    tried()
