"""Requests generated from the OpenAPI document: no 5xx, and responses conform to the document."""

from pathlib import Path

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from support import served

pytestmark = pytest.mark.slow

CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance)
MODELS = {
    "/v1/embeddings": "bert",
    "/classify": "classifier",
    "/answer": "reader",
    "/v1/rerank": "reranker",
    "/search": "index",
}
TRUNCATING = ("/v1/embeddings", "/translate", "/classify")


@pytest.fixture(scope="module")
def api(folders):
    models = {name: folders / name for name in ("bert", "classifier", "reader", "reranker", "marian", "index")}
    with served.server(models, tasks=["marian=translate,summarize"]) as server:
        yield schemathesis.openapi.from_url(f"{server.address}/openapi.json")


OPERATIONS = [
    *(f"GET {path}" for path in ("/health/live", "/health/ready", "/metrics", "/v1/models", "/v1/models/{name}")),
    *(
        f"POST {path}"
        for path in (
            "/v1/embeddings",
            "/v1/rerank",
            "/search",
            "/translate",
            "/summarize",
            "/answer",
            "/classify",
            "/view",
        )
    ),
]


def test_all_operations_are_listed(api):
    operations = [f"{one.ok().method.upper()} {one.ok().path}" for one in api.get_all_operations()]
    assert sorted(operations) == sorted(OPERATIONS)
    lines = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8").splitlines()
    documented = "".join(line.split(" | ")[0] for line in lines if line.startswith("| `"))
    for operation in OPERATIONS:
        path = operation.split()[1].replace("{name}", "NAME")
        assert f"{path}`" in documented, f"add {path} to the table of docs/deploy.md"


def unbounded(schema, definitions, path):
    """Yield the parts of a JSON schema whose size or range has no bound."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    kind = schema.get("type")
    if kind in ("integer", "number") and not {"minimum", "maximum"} <= schema.keys():
        yield path
    if kind == "string" and not {"maxLength", "enum", "const"} & schema.keys():
        yield path
    if kind == "array" and "maxItems" not in schema:
        yield path
    parts = dict(schema.get("properties", {}))
    if "items" in schema:
        parts["items"] = schema["items"]
    parts |= {f"anyOf[{number}]": part for number, part in enumerate(schema.get("anyOf", ()))}
    for name, part in parts.items():
        yield from unbounded(part, definitions, f"{path}.{name}")


def test_every_value_of_a_request_has_bounds(api):
    document = api.raw_schema
    definitions = document["components"]["schemas"]
    found = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                found += unbounded(parameter["schema"], definitions, f"{path} {parameter['name']}")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                found += unbounded(body["schema"], definitions, path)
    assert not found, found


@pytest.mark.parametrize(
    ("operation", "mode"),
    [(one, GenerationMode.POSITIVE) for one in OPERATIONS]
    # what has no body cannot be wrong in it
    + [(one, GenerationMode.NEGATIVE) for one in OPERATIONS if one.startswith("POST")],
)
def test_operations_conform_to_the_openapi_document(api, operation, mode):
    method, path = operation.split()
    model, statuses = MODELS.get(path, "marian"), []

    @given(case=api[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=12, deadline=None)
    def tried(case):
        if mode is GenerationMode.POSITIVE:
            # a loaded model, and texts that it takes; otherwise hardly a request comes as far as the model
            if isinstance(case.body, dict):
                case.body |= {"model": model} | ({"truncate": True} if path in TRUNCATING else {})
            if "name" in case.path_parameters:
                case.path_parameters["name"] = model
        response = case.call()
        # 413 is a refusal too, which the check does not know
        case.validate_response(
            response, checks=CHECKS if response.status_code == 413 else (*CHECKS, negative_data_rejection)
        )
        statuses.append(response.status_code)

    tried()
    if mode is GenerationMode.POSITIVE:
        assert 200 in statuses, statuses
