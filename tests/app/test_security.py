"""Who may ask for what: hosts, sites, tokens, and what every answer carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import create_app
from app.security import COOKIE
from fbxcore.errors import InvalidArgumentError
from tests.app.support import Api, assert_refused, buffer_body, send, serve, settings_of, steps

BUFFERS = "/api/v1/buffers"
TOKEN = "a-long-token"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with a token."""
    with serve(tmp_path_factory.mktemp("guarded"), token=TOKEN) as api:
        yield api


@pytest.fixture(scope="module")
def filled(api: Api) -> str:
    """A buffer that can be sampled."""
    api.post(BUFFERS, json=buffer_body("filled"))
    send(api, f"{BUFFERS}/filled/experience", steps(2, 10))
    return f"{BUFFERS}/filled"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "::"])
def test_an_open_address_needs_a_token(tmp_path: Path, host: str) -> None:
    """Without token or `insecure` no app is made; with either it is."""
    with pytest.raises(InvalidArgumentError, match="FLASHDECK_TOKEN"):
        create_app(settings_of(tmp_path, host=host))
    with pytest.raises(InvalidArgumentError, match="FLASHDECK_TOKEN"):
        create_app(settings_of(tmp_path, host=host, token=""))

    create_app(settings_of(tmp_path, host=host, token=TOKEN))
    create_app(settings_of(tmp_path, host=host, insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(tmp_path: Path, host: str) -> None:
    """The default address serves without a token."""
    app = create_app(settings_of(tmp_path, host=host))

    assert app.state.settings.token is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer "},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"{COOKIE}="},
    ],
)
def test_without_the_token_every_resource_is_401(guarded: Api, headers: dict) -> None:
    """No, wrong or misspelt tokens are refused before anything is looked up, also for unknown paths."""
    for method, path in [
        ("GET", BUFFERS),
        ("POST", BUFFERS),
        ("GET", f"{BUFFERS}/x/sample"),
        ("GET", "/nowhere"),
        ("POST", "/api/v1/scan"),
        ("GET", "/openapi.json"),
    ]:
        answer = guarded.request(method, path, headers=headers)
        assert_refused(answer, 401, "unauthorized", "`Authorization`")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_with_the_token_everything_is_served(guarded: Api) -> None:
    """`Authorization: Bearer` opens lists and hot paths."""
    headers = {"authorization": f"Bearer {TOKEN}"}

    assert guarded.get(BUFFERS, headers=headers).status_code == 200
    assert_refused(guarded.get(f"{BUFFERS}/x/sample", headers=headers), 404, "not_found")


def test_health_and_login_need_no_token(guarded: Api) -> None:
    """Probes and the form are open; they tell nothing of the data."""
    assert guarded.get("/livez").status_code == 200
    assert guarded.get("/readyz").status_code == 200
    assert "<form" in guarded.get("/login").text


def test_a_browser_without_cookie_is_sent_to_login(guarded: Api) -> None:
    """A page answers 303 to /login with where to go after; the API stays 401."""
    headers = {"accept": "text/html,*/*"}
    answer = guarded.get("/buffers", headers=headers)

    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/buffers")
    assert_refused(guarded.get(BUFFERS, headers=headers), 401, "unauthorized")


def test_the_token_is_exchanged_for_a_cookie_that_does_not_tell_it(guarded: Api) -> None:
    """POST /login sets an HttpOnly SameSite=Lax cookie that opens the API, and goes on to `next`."""
    answer = guarded.post("/login?next=/buffers", data={"token": TOKEN})

    assert (answer.status_code, answer.headers["location"]) == (303, "/buffers")
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=lax" in cookie.lower()
    assert TOKEN not in cookie
    session = cookie.split(";")[0]
    guarded.cookies.clear()
    assert guarded.get(BUFFERS, headers={"cookie": f"other=1; {session}"}).status_code == 200


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "evil"])
def test_login_never_leads_to_another_site(guarded: Api, target: str) -> None:
    """`next` that is no path of ours becomes `/`."""
    answer = guarded.post("/login", params={"next": target}, data={"token": TOKEN})

    guarded.cookies.clear()
    assert answer.headers["location"] == "/"


def test_a_wrong_token_shows_the_form_again(guarded: Api) -> None:
    """401 with the form, and no cookie."""
    for data in ({"token": "wrong"}, {}, {"token": ""}):
        answer = guarded.post("/login", data=data)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert "<form" in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "a b", "[", "x" * 300]
)
def test_unknown_host_names_are_refused(api: Api, host: str) -> None:
    """A name that points at us cannot read us: 421."""
    assert_refused(
        api.get(BUFFERS, headers={"host": host}), 421, "unknown_host", "`Host`", "FLASHDECK_ALLOWED_HOSTS"
    )


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5", "a.localhost"]
)
def test_loopback_names_and_addresses_are_known(api: Api, host: str) -> None:
    """Addresses cannot be pointed elsewhere, so they are always served."""
    assert api.get("/livez", headers={"host": host}).status_code == 200


def test_allowed_hosts_are_known(tmp_path: Path) -> None:
    """Names of FLASHDECK_ALLOWED_HOSTS are served in any case and port; others are not."""
    with serve(tmp_path / "data", allowed_hosts="deck.example, other") as api:
        assert api.get("/livez", headers={"host": "Deck.Example:443"}).status_code == 200
        assert_refused(api.get("/livez", headers={"host": "x.deck.example"}), 421, "unknown_host")


CROSS = [
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": "https://evil.example"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "origin": "http://localhost:3000"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:8001"},
    {"origin": "http://[::1"},
]


@pytest.mark.parametrize("headers", CROSS)
def test_other_sites_neither_sample_nor_change(api: Api, filled: str, headers: dict) -> None:
    """Scripts of another site are 403 for sampling and every unsafe method, and nothing happens."""
    before = api.get(filled).json()

    for method, path in [
        ("GET", f"{filled}/sample"),
        ("POST", f"{filled}/sample"),
        ("POST", f"{filled}/experience"),
        ("DELETE", f"{filled}?discard=true"),
        ("POST", f"{filled}/reset?discard=true"),
        ("PUT", filled),
        ("GET", filled),
    ]:
        assert_refused(api.request(method, path, headers=headers), 403, "cross_site", "`Origin`")
    assert api.get(filled).json() == before


def test_other_sites_may_open_a_page_but_not_sample_by_navigation(api: Api, filled: str) -> None:
    """A link opens pages and plain reads; sampling, posting and frames stay refused."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

    assert api.get("/livez", headers=link).status_code == 200
    assert api.get(filled, headers=link).status_code == 200
    assert_refused(api.get(f"{filled}/sample", headers=link), 403, "cross_site")
    assert_refused(api.post(f"{filled}/reset?discard=true", headers=link), 403, "cross_site")
    assert_refused(api.get("/livez", headers=link | {"sec-fetch-dest": "iframe"}), 403, "cross_site")


@pytest.mark.parametrize(
    "headers",
    [{}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://127.0.0.1:8000"}],
)
def test_our_own_pages_and_programs_are_served(api: Api, filled: str, headers: dict) -> None:
    """Same origin, typed addresses and clients that are no browsers may sample and change."""
    assert api.get(f"{filled}/sample?peek=true", headers=headers).status_code == 200
    assert send(api, f"{filled}/experience", steps(2, 1), headers=headers).status_code == 201


def test_a_trusted_proxy_says_the_host(tmp_path: Path) -> None:
    """`X-Forwarded-Host` counts from a trusted proxy only."""
    headers = {"x-forwarded-host": "deck.example", "origin": "https://deck.example"}
    given = {"allowed_hosts": "deck.example"}
    with serve(tmp_path / "one", trusted_proxies="testclient", **given) as api:
        assert api.post("/api/v1/scan", headers=headers).status_code == 200
    with serve(tmp_path / "two", **given) as api:
        assert_refused(api.post("/api/v1/scan", headers=headers), 403, "cross_site")


def test_a_root_path_is_on_every_address(tmp_path: Path) -> None:
    """Behind `/deck`, documents and redirects carry the prefix."""
    with serve(tmp_path / "data", root_path="/deck/", token=TOKEN) as api:
        answer = api.get("/deck/buffers", headers={"accept": "text/html"})
        assert answer.headers["location"] == "/deck/login?next=/buffers"
        schema = api.get("/deck/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()
        assert schema["servers"] == [{"url": "/deck"}]


def test_every_answer_has_its_id(api: Api) -> None:
    """A given `X-Request-ID` comes back, a strange one is replaced, and no two are the same."""
    assert api.get("/livez", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {api.get("/livez", headers={"x-request-id": "a b\x7f"}).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert api.get("/livez").headers["x-content-type-options"] == "nosniff"
