"""The documentation tells of everything that is served."""

from __future__ import annotations

import pytest

from tests.app.support import Api


@pytest.fixture(scope="module")
def schema(api: Api) -> dict:
    """The document."""
    return api.get("/openapi.json").json()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/api/v1/buffers"), ("put", "/api/v1/buffers/{name}"), ("get", "/api/v1/buffers"),
        ("delete", "/api/v1/buffers/{name}"), ("post", "/api/v1/buffers/{name}/experience"),
        ("get", "/api/v1/buffers/{name}/sample"), ("post", "/api/v1/buffers/{name}/sample"),
        ("post", "/api/v1/buffers/{name}/take"),
        ("get", "/api/v1/buffers/{name}/writers"), ("delete", "/api/v1/buffers/{name}/writers/{writer}"),
        ("put", "/api/v1/buffers/{name}/writers/{writer}/episode"),
        ("patch", "/api/v1/buffers/{name}/priorities"), ("get", "/api/v1/buffers/{name}/histogram"),
        ("post", "/api/v1/vaults"), ("get", "/api/v1/vaults/{vault_name}/{vault_uid}/slice"),
        ("post", "/api/v1/vaults/{vault_name}/{vault_uid}/experience"),
        ("post", "/api/v1/vaults/{vault_name}/{vault_uid}/versions"),
        ("put", "/api/v1/vaults/{vault_name}/{vault_uid}/tags/{tag}"), ("post", "/api/v1/scan"),
        ("get", "/api/v1/capabilities"), ("get", "/livez"),
    ],
)  # fmt: skip
def test_every_resource_is_documented(schema: dict, method: str, path: str) -> None:
    """Each has a summary, answers, and problems for its refusals."""
    operation = schema["paths"][path][method]

    assert operation["summary"] and operation["responses"]
    assert "application/problem+json" in operation["responses"]["4XX"]["content"]


def test_names_of_operations_are_unique_and_references_lead_somewhere(schema: dict) -> None:
    """Generated clients need both."""
    operations = [op for path in schema["paths"].values() for op in path.values()]
    names = [operation["operationId"] for operation in operations]
    references = {ref.rpartition("/")[2] for ref in _references(schema)}

    assert len(names) == len(set(names))
    assert references <= set(schema["components"]["schemas"])


def test_what_is_not_served_yet_is_not_documented(schema: dict) -> None:
    """No exports or jobs."""
    assert not [path for path in schema["paths"] if "export" in path or "jobs" in path]


def test_the_reference_is_drawn_from_our_own_files(api: Api) -> None:
    """/docs is a page that loads nothing from elsewhere."""
    page = api.get("/docs").text

    assert "swagger" in page and "https://" not in page.replace("https://127", "")


def _references(value: object):
    if isinstance(value, dict):
        for name, member in value.items():
            if name == "$ref":
                yield member
            else:
                yield from _references(member)
    elif isinstance(value, list):
        for member in value:
            yield from _references(member)


def test_capabilities_say_what_is_served(api: Api) -> None:
    """Kinds with their arguments, formats with their media types, and limits."""
    found = api.get("/api/v1/capabilities").json()

    assert "max_length" in found["kinds"]["flat"]
    assert found["formats"]["npz"] == "application/x-npz"
    assert found["limits"]["timeout_ms"] == 30_000
