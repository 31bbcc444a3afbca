"""A vault with ten thousand versions: every answer stays within its budget."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from sqlalchemy import event

from fbxcore.spec import parse_spec
from fbxcore.vault.store import VaultWriter
from tests.app.support import SPEC, Api, send, serve, steps

VAULT = "/api/v1/vaults/many/1"
COUNT = 10_000
HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with such a vault, whose records were written in one commit."""
    data: Path = tmp_path_factory.mktemp("many")
    with VaultWriter.create(data / "vaults" / "many" / "1", parse_spec(SPEC), rows=2) as writer:
        writer.append(steps(2, 5))
        records = [
            {"number": n, "generation": writer.generation, "length": 5, "digest": f"sha256-{n:064x}",
             "created_at": f"2026-01-01T00:00:{n % 60:02}.000Z", "message": f"epoch {n}", "metadata": {}}
            for n in range(1, COUNT + 1)
        ]  # fmt: skip
        pages = {
            f"_flashdeck/versions/{at // 64:06}": json.dumps(records[at : at + 64]).encode()
            for at in range(0, COUNT, 64)
        }
        tags = {f"tag-{n}": {"version": n, "protected": False} for n in range(1, 201)}
        writer.put(pages | {"_flashdeck/tags": json.dumps(tags).encode()})
    with serve(data) as api:
        yield api


def test_lists_and_pages_fit_their_budget(many: Api) -> None:
    """At most 50 kB of HTML and 10 SQL statements for each page, and a list answers 50 or 500 versions."""
    engine, seen = many.app.state.deck.database.engine.sync_engine, []
    listen = lambda *given: seen.append(given[2])  # noqa: E731
    event.listen(engine, "before_cursor_execute", listen)
    for url in ("/", "/vaults", "/vaults/many/1", "/vaults/many/1?ref=tag-7"):
        seen.clear()
        answer = many.get(url, headers=HTML)
        assert answer.status_code == 200
        assert len(answer.content) <= 50_000, (url, len(answer.content))
        assert len(seen) <= 10, url
    for limit in (50, 500):
        seen.clear()
        found = many.get(f"{VAULT}/versions?limit={limit}").json()
        assert (len(found["items"]), found["total"]["value"], len(seen)) == (limit, COUNT, 0)
    event.remove(engine, "before_cursor_execute", listen)


def test_every_version_is_listed_once(many: Api) -> None:
    """Following `next`, and following `Older versions` on the page."""
    numbers, token = [], ""
    while token is not None:
        found = many.get(
            f"{VAULT}/versions?limit=500&next={token}" if token else f"{VAULT}/versions?limit=500"
        )
        numbers += [item["version"] for item in found.json()["items"]]
        token = found.json()["next"]
    assert numbers == list(range(COUNT, 0, -1))

    first = BeautifulSoup(many.get("/vaults/many/1", headers=HTML).text, "html.parser")
    href = first.select_one("#versions a[rel=next]")["href"]
    second = BeautifulSoup(many.get(f"/vaults/many/1{href}", headers=HTML).text, "html.parser")
    names = [a.get_text() for a in second.select("#versions tbody a.name")]
    assert names[1:] == [f"v{n}" for n in range(COUNT - 50, COUNT - 100, -1)]


def test_making_and_finding_one_more_stays_quick(many: Api) -> None:
    """A second each at most, on a machine that is busy; the mirror gains one row."""
    send(many, f"{VAULT}/experience", steps(2, 1, start=5))
    begin = time.monotonic()
    made = many.post(f"{VAULT}/versions").json()
    many.get(f"{VAULT}/versions/{made['digest']}")
    many.get(f"{VAULT}/slice?ref=tag-200")
    many.delete(f"{VAULT}/versions/9000")

    assert made["version"] == COUNT + 1
    assert time.monotonic() - begin < 4
    assert many.get(VAULT).json()["versions"] == COUNT


def test_retention_takes_thousands_at_once(many: Api) -> None:
    """All but the newest hundred and the tagged, in one commit."""
    generation = many.get(VAULT).json()["generation"]
    swept = many.post(f"{VAULT}/gc", json={"keep": 100}).json()

    assert len(swept["deleted_versions"]) == COUNT - 200 - 100
    assert many.get(VAULT).json()["versions"] == 300
    assert many.get(VAULT).json()["generation"] == generation + 2  # the records, and the sweep's own
