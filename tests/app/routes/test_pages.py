"""Pages without a browser: what the HTML says, compared with the API's own answers."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest
from bs4 import BeautifulSoup
from sqlalchemy import event

from app.contexts import units
from tests.app.support import Api, buffer_body, send, serve, steps

HTML = {"accept": "text/html"}


def page(api: Api, url: str, status: int = 200) -> BeautifulSoup:
    """Open a page as a browser does."""
    answer = api.get(url, headers=HTML)
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return BeautifulSoup(answer.text, "html.parser")


def text_of(soup: BeautifulSoup, selector: str) -> str:
    """Return the text of the one element that fits."""
    (found,) = soup.select(selector)
    return " ".join(found.get_text(" ").split())


@pytest.fixture(scope="module")
def deck(api: Api) -> Api:
    """A service with a persisted buffer of 2 × 30 steps, a tagged version, and a buffer that fills."""
    api.post("/api/v1/buffers", json=buffer_body("cartpole", persist_to="cartpole/run1"))
    api.post("/api/v1/buffers", json=buffer_body("filling", min_length=60, durability="none"))
    send(api, "/api/v1/buffers/cartpole/experience", steps(2, 30))
    send(api, "/api/v1/buffers/filling/experience", steps(2, 4))
    api.post("/api/v1/vaults/cartpole/run1/versions", json={"message": "first <look>", "tags": ["baseline"]})
    return api


def test_an_empty_service_says_what_to_do_next(tmp_path) -> None:
    """Without buffers and vaults each page offers a snippet that creates one, and no table."""
    with serve(tmp_path) as api:
        for url in ("/", "/buffers", "/vaults"):
            soup = page(api, url)

            assert soup.select(".empty code[data-language=sh]"), url
            assert not soup.select("table"), url


def test_the_snippet_of_an_empty_service_creates_a_buffer_as_it_stands(tmp_path) -> None:
    """The JSON in the curl line is accepted by the address in it."""
    with serve(tmp_path) as api:
        code = page(api, "/buffers").select_one("#create-curl").get_text()
        url = re.search(r"-X PUT (\S+)", code)[1]
        body = re.search(r"-d '(.*)'", code, re.DOTALL)[1]

        assert api.put(url, content=body, headers={"content-type": "application/json"}).status_code == 201


def test_overview_counts_what_the_api_counts(deck: Api) -> None:
    """Two buffers, one vault, and as many steps held as the buffers say together."""
    soup = page(deck, "/")
    held = sum(b["size"] for b in deck.get("/api/v1/buffers").json()["items"])

    assert text_of(soup, "[data-totals] [data-live=size]") == f"{held:,}"
    assert {a.get_text() for a in soup.select("a.name")} >= {"cartpole", "filling", "cartpole/run1"}


def test_list_shows_fill_and_state_of_each_buffer(deck: Api) -> None:
    """60 of 64 steps are 93.8 %; the buffer below `min_length` is filling."""
    soup = page(deck, "/buffers")

    assert text_of(soup, "[data-buffer=cartpole] [data-live=fill]") == "93.8"
    assert text_of(soup, "[data-buffer=cartpole] .pill") == "ready"
    assert text_of(soup, "[data-buffer=filling] .pill") == "filling"


def test_list_filters_and_sorts_by_the_url(deck: Api) -> None:
    """`query` keeps matching names, `sort=size` puts the fullest first."""
    filtered = page(deck, "/buffers?query=FILL")
    ordered = page(deck, "/buffers?sort=size")

    assert [row["data-buffer"] for row in filtered.select("tr[data-buffer]")] == ["filling"]
    assert [row["data-buffer"] for row in ordered.select("tr[data-buffer]")] == ["cartpole", "filling"]


def test_buffer_page_says_what_the_api_says(deck: Api) -> None:
    """Size, capacity, added and write head are those of GET /buffers/{name}."""
    soup, answer = page(deck, "/buffers/cartpole"), deck.get("/api/v1/buffers/cartpole").json()

    assert text_of(soup, ".ring [data-live=size]") == f"{answer['size']:,}"
    assert f"of {answer['capacity']:,} timesteps" in text_of(soup, ".ring-facts")
    assert text_of(soup, ".tiles [data-live=added]") == f"{answer['added']:,}"
    assert text_of(soup, ".ring [data-live=head]") == str(answer["position"] % answer["time_axis"])


def test_buffer_page_names_the_risk_of_its_durability(deck: Api) -> None:
    """fsync survives a power loss, none does not survive a crash, and both pages say so."""
    assert "survive a power loss" in text_of(page(deck, "/buffers/cartpole"), "[aria-labelledby=h-schema]")
    assert "Nothing survives the end" in text_of(page(deck, "/buffers/filling"), "[aria-labelledby=h-schema]")


def test_tape_shows_empty_cells_and_the_write_head(deck: Api) -> None:
    """30 of 32 slots: 4 of 64 cells are empty, the head stands on the first of them."""
    cells = page(deck, "/buffers/cartpole").select(".ring [data-tape] rect")

    assert [i for i, cell in enumerate(cells) if "c0" in cell["class"]] == [60, 61, 62, 63]
    assert [i for i, cell in enumerate(cells) if "head" in cell["class"]] == [60]


def test_histogram_bars_count_every_item(deck: Api) -> None:
    """The bars' titles add up to the count that the API gives for the same field."""
    soup = page(deck, "/buffers/cartpole?field=age")
    titles = [bar.get_text() for bar in soup.select(".bars rect title")]
    answer = deck.get("/api/v1/buffers/cartpole/histogram?field=age").json()

    assert sum(int(t.rsplit(": ", 1)[1].replace(",", "")) for t in titles) == answer["count"]
    assert text_of(soup, "#distribution .pill") == "exact"
    assert re.fullmatch(r"counted at \d\d:\d\d:\d\d UTC, not live", text_of(soup, "#distribution time"))


def test_sample_is_the_one_the_api_draws_with_the_same_seed(deck: Api) -> None:
    """The table has the indices of a peeked sample with that seed, and nothing is counted."""
    soup = page(deck, "/buffers/cartpole?seed=7")
    drawn = deck.get("/api/v1/buffers/cartpole/sample?batch_size=5&seed=7&peek=true&format=json").json()
    rows = [
        [cell.get_text(strip=True) for cell in row.select("td")] for row in soup.select(".sampled tbody tr")
    ]

    assert [int(row[0]) for row in rows] == drawn["indices"]
    assert text_of(soup, "#seed") == "7"
    assert deck.get("/api/v1/buffers/cartpole").json()["sampled"] == 0


def test_sample_is_disabled_with_the_reason(deck: Api) -> None:
    """A buffer with 4 of the 31 steps that 30 transitions need says so instead of offering the button."""
    soup = page(deck, "/buffers/filling?seed=1")

    assert soup.select_one("#sample button").has_attr("disabled")
    assert text_of(soup, "#why-not") == "It needs 27 more timesteps in each row before it can be sampled."


def test_vault_page_shows_length_versions_and_tags(deck: Api) -> None:
    """30 steps, v1 with its tag, message (escaped) and the start of its digest."""
    soup, version = (
        page(deck, "/vaults/cartpole/run1"),
        deck.get("/api/v1/vaults/cartpole/run1/versions/1").json(),
    )
    row = text_of(soup, "#versions tbody tr:nth-of-type(2)")

    assert text_of(soup, ".tiles [data-live=length]") == "30"
    assert row.startswith("v1 baseline first <look> 30 steps")
    assert version["digest"].removeprefix("sha256-")[:10] in row


def test_slice_table_shows_the_steps_that_were_sent(deck: Api) -> None:
    """Rows 5 to 7 of row 1, leaf reward only, hold the rewards that were added."""
    soup = page(deck, "/vaults/cartpole/run1?start=5&stop=8&row=1&leaf=reward")
    rows = [
        [cell.get_text(strip=True) for cell in row.find_all(["th", "td"])]
        for row in soup.select("table.steps tbody tr")
    ]

    assert [row[0] for row in rows] == ["5", "6", "7"]
    sent = steps(2, 30)["reward"][1, 5:8]
    assert np.allclose([float(row[1].replace("−", "-")) for row in rows], sent, rtol=1e-4)


def test_several_leaves_are_chosen_by_naming_each(deck: Api) -> None:
    """`leaf` is a list, and each one named has a column."""
    soup = page(deck, "/vaults/cartpole/run1?start=5&stop=8&leaf=obs/vector&leaf=reward")

    assert len(soup.select("table.steps tbody tr")[0].find_all("td")) == 2


def test_downloads_are_the_slice_that_is_shown(deck: Api) -> None:
    """Each button's address answers 200 with an attachment in its format."""
    soup = page(deck, "/vaults/cartpole/run1?start=2&stop=6&leaf=reward")
    links = soup.select(".downloads a")

    assert [a.get_text() for a in links] == ["npz", "safetensors", "JSON"]
    for link in links:
        answer = deck.get(link["href"])
        assert answer.status_code == 200
        assert answer.headers["x-timesteps"] == "4"
        assert answer.headers["content-disposition"].startswith("attachment")


def test_a_slice_that_is_refused_says_why_on_the_page(deck: Api) -> None:
    """Row 99 of two: 200, the sentence of the API, and no table."""
    soup = page(deck, "/vaults/cartpole/run1?row=99")

    assert "`rows` must hold at least one of the 2 rows" in text_of(soup, "#slice .notice")
    assert not soup.select("table.steps")


@pytest.mark.parametrize(
    ("url", "member"),
    [
        ("/overview.json", "totals"),
        ("/buffers.json", "items"),
        ("/buffers/cartpole.json", "buffer"),
        ("/vaults.json", "items"),
        ("/vaults/cartpole/run1.json", "vault"),
    ],
)
def test_every_page_answers_json(deck: Api, url: str, member: str) -> None:
    """The same address with `.json` is JSON and holds the page's data."""
    answer = deck.get(url)

    assert answer.headers["content-type"] == "application/json"
    assert answer.json()[member]


def test_a_page_links_to_its_json(deck: Api) -> None:
    """The link in the footer, resolved against the page's address, answers JSON."""
    for url in ("/", "/buffers", "/buffers/cartpole", "/vaults", "/vaults/cartpole/run1"):
        href = page(deck, url).find("a", string="This page as JSON")["href"]
        place = href if href.startswith("/") else f"{url.rpartition('/')[0]}/{href}"

        assert deck.get(place).headers["content-type"] == "application/json", place


def test_an_unknown_page_is_a_page(deck: Api) -> None:
    """A browser gets HTML for 404, with the sentence and the code of the problem."""
    soup = page(deck, "/buffers/nope", status=404)

    assert "No buffer named 'nope'" in soup.get_text()
    assert soup.select_one("code").get_text() == "not_found"


def test_an_unknown_parameter_is_refused(deck: Api) -> None:
    """A page serves no parameter it does not know."""
    assert deck.get("/buffers?colour=red").status_code == 422


def test_login_page_asks_for_the_token(tmp_path) -> None:
    """With a token, pages redirect to a form; a wrong token is told, the right one opens the page."""
    with serve(tmp_path, token="s3cret") as api:
        asked = api.get(
            "/buffers", headers=HTML | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        )
        form = page(api, asked.headers["location"])
        wrong = api.post("/login", data={"token": "wrong"})
        right = api.post("/login?next=/buffers", data={"token": "s3cret"})

        assert form.select_one("input[name=token]")["type"] == "password"
        assert BeautifulSoup(wrong.text, "html.parser").select_one("[role=alert]")
        assert (right.status_code, right.headers["location"]) == (303, "/buffers")
        assert page(api, "/buffers").select_one("h1").get_text() == "Buffers"


def test_pages_allow_only_what_is_their_own(deck: Api) -> None:
    """The policy of a page names no host and no inline script."""
    policy = deck.get("/buffers", headers=HTML).headers["content-security-policy"]

    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy


def test_assets_are_named_by_their_content_and_kept(deck: Api) -> None:
    """Every script and sheet of a page has a hash in its address and is immutable under it."""
    soup = page(deck, "/buffers/cartpole")
    urls = [s["src"] for s in soup.select("script[src]")] + [
        s["href"] for s in soup.select("link[rel=stylesheet]")
    ]

    for url in urls:
        answer = deck.get(url)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"], url
    assert "immutable" not in deck.get(urls[0].split("?")[0] + "?h=000000000000").headers["cache-control"]


@pytest.mark.parametrize("part", ["bytes=0-9", "bytes=9-1", "lines=1-2", "", "bytes=999999999-"])
def test_a_part_of_an_asset_is_the_whole(deck: Api, part: str) -> None:
    """Assets are small: a range is passed over, also one that is none, and the answer says so."""
    answer = deck.get("/static/app.css", headers={"range": part})

    assert (answer.status_code, answer.headers["accept-ranges"]) == (200, "none")
    assert answer.content == deck.get("/static/app.css").content


def test_docs_start_from_files_of_our_own(deck: Api) -> None:
    """/docs names the API description and only scripts below /static."""
    soup = page(deck, "/docs")

    assert deck.get(soup.select_one("#swagger")["data-openapi"]).json()["openapi"]
    assert all(script["src"].startswith("/static/") for script in soup.select("script"))


def test_list_pages_fit_their_budget(deck: Api) -> None:
    """With 60 vaults a list page stays below 50 kB of HTML and 10 SQL statements."""
    for i in range(60):
        deck.post(
            "/api/v1/vaults",
            json={"vault_name": f"many-{i:02}", "vault_uid": "run1", "spec": buffer_body("x")["spec"]},
        )
    engine, seen = deck.app.state.deck.database.engine.sync_engine, []
    listen = lambda *given: seen.append(given[2])  # noqa: E731
    event.listen(engine, "before_cursor_execute", listen)
    for url in ("/vaults", "/buffers", "/"):
        seen.clear()
        answer = deck.get(url, headers=HTML)

        assert len(answer.content) <= 50_000, url
        assert len(seen) <= 10, url
    event.remove(engine, "before_cursor_execute", listen)


def test_a_list_of_vaults_goes_on_where_the_page_ends(deck: Api) -> None:
    """Following `Next page` shows every vault once."""
    first = page(deck, "/vaults")
    second = page(deck, "/vaults" + first.select_one("a[rel=next]")["href"])
    names = [row["data-vault"] for soup in (first, second) for row in soup.select("tr[data-vault]")]

    assert len(names) == len(set(names)) == deck.get("/api/v1/vaults").json()["total"]["value"]


def test_python_snippets_are_valid(deck: Api) -> None:
    """Each Python snippet of the pages compiles."""
    for url in ("/buffers/cartpole", "/vaults/cartpole/run1"):
        codes = page(deck, url).select("code[data-language=python]")
        assert codes
        for code in codes:
            compile(code.get_text(), url, "exec")


def test_shell_snippets_are_valid(deck: Api) -> None:
    """Each shell snippet of the pages parses."""
    for url in ("/buffers/cartpole", "/vaults/cartpole/run1"):
        for code in page(deck, url).select("code[data-language=sh]"):
            assert subprocess.run(["bash", "-n", "-c", code.get_text()]).returncode == 0


def test_a_vault_says_what_its_bytes_are_for(deck: Api) -> None:
    """Live and other bytes are those of the API; what a sweep would give back is told when asked."""
    vault = deck.get("/api/v1/vaults/cartpole/run1").json()
    before, after = (page(deck, f"/vaults/cartpole/run1{query}") for query in ("", "?sweep=preview"))

    assert "Reclaimable" not in before.get_text()
    size = units.size(vault["live_bytes"])
    assert before.select_one("#storage + dl dd span").get_text() == f"{size.text} {size.unit}"
    assert {"Live", "Besides", "Reclaimable", "Waiting"} <= {dt.get_text() for dt in after.select("dt")}
