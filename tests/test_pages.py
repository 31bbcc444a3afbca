"""The pages in a real browser, on a real server, while real experience is posted."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fbxcore.client import Client
from tests.served import Served, serve

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
pytestmark = pytest.mark.browser

SHOTS = Path(__file__).resolve().parent.parent / "test-results"
CHROMIUM = "/usr/bin/chromium"
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SPEC = {
    "obs": {"shape": [4], "dtype": "float32"},
    "action": {"shape": [], "dtype": "int32"},
    "reward": {"shape": [], "dtype": "float32", "role": "reward"},
}
FRAMES = {"frame": {"shape": [84, 84], "dtype": "uint8"}, "reward": {"shape": [], "dtype": "float32"}}
PAGES = (
    "/",
    "/buffers",
    "/buffers/cartpole?seed=1",
    "/buffers/frames?seed=1",
    "/vaults",
    "/vaults/cartpole/run1",
    "/docs",
)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict) -> dict:
    """The system's Chromium, which calls nobody on its own."""
    return browser_type_launch_args | {"executable_path": CHROMIUM, "args": QUIET}


def steps(rng: np.random.Generator, length: int) -> dict[str, np.ndarray]:
    """Return experience `[4, length, ...]` of the cartpole buffer."""
    return {
        "obs": rng.normal(0, 0.1, (4, length, 4)).astype("float32"),
        "action": rng.integers(0, 2, (4, length)).astype("int32"),
        "reward": np.ones((4, length), "float32"),
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a prioritised buffer, one of frames, one that fills, and a tagged version."""
    rng = np.random.default_rng(0)
    with serve(tmp_path_factory.mktemp("served")) as served, Client(served.url) as client:
        shared = {"sample_batch_size": 32, "add_batch_size": 4}
        cartpole = client.create_buffer(
            "cartpole", "prioritised_flat", SPEC, max_length=4000, min_length=100, priority_exponent=0.6,
            persist_to="cartpole/run1", **shared,
        )  # fmt: skip
        client.create_buffer("filling", "flat", SPEC, max_length=4000, min_length=2000, **shared)
        frames = client.create_buffer(
            "frames", "item", FRAMES, max_length=256, min_length=8, sample_batch_size=8
        )
        cartpole.add(steps(rng, 300))
        drawn = cartpole.sample()
        cartpole.set_priorities(drawn, rng.lognormal(0, 1, len(drawn.indices)).astype("float32"))
        frames.add(
            {"frame": rng.integers(0, 255, (32, 84, 84)).astype("uint8"), "reward": np.ones(32, "float32")}
        )
        client.vault("cartpole/run1").create_version("first look", ["baseline"])
        yield served


@dataclass
class Seen:
    """What went wrong in a page, and whom it asked."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture
def seen(page: sync_api.Page) -> Seen:
    """Listen to a page's console, its errors and its requests."""
    seen = Seen()
    page.on(
        "console",
        lambda message: seen.errors.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on(
        "request", lambda request: seen.hosts.add(request.url.split("/")[2] if "//" in request.url else "")
    )
    return seen


def answer(server: Served, path: str) -> dict:
    """Return what the API says."""
    with urllib.request.urlopen(f"{server.url}/api/v1{path}", timeout=10) as response:
        return json.load(response)


def number(text: str) -> float:
    """Read a number as pages write it."""
    return float(text.replace(",", "").replace("−", "-"))


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_page_opens_without_an_error_and_asks_nobody_else(
    page: sync_api.Page, server: Served, seen: Seen, path: str, theme: str, width: int
) -> None:
    """No console error, no failed request, no other host, and nothing is wider than the window."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    failed = []
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.goto(server.url + path, wait_until="load")
    expect(
        page.locator("#swagger .opblock").first
        if path == "/docs"
        else page.locator("#pulse[data-state=live]")
    ).to_be_visible()
    name = re.sub(r"\W+", "-", path.split("?")[0]).strip("-") or "overview"
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png", full_page=True)

    assert seen.errors == []
    assert failed == []
    assert {host for host in seen.hosts if host} == {server.url.split("//")[1]}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_numbers_are_those_of_the_api(page: sync_api.Page, server: Served) -> None:
    """Size, capacity, added and sampled on the page equal GET /buffers/cartpole."""
    page.goto(f"{server.url}/buffers/cartpole")
    shown = answer(server, "/buffers/cartpole")

    assert number(page.locator(".ring [data-live=size]").inner_text()) == shown["size"]
    assert number(page.locator(".tiles [data-live=added]").inner_text()) == shown["added"]
    assert number(page.locator(".tiles [data-live=sampled]").inner_text()) == shown["sampled"]
    assert f"of {shown['capacity']:,}" in page.locator(".ring-facts").inner_text()


def test_live_numbers_move_while_data_arrives(page: sync_api.Page, server: Served, seen: Seen) -> None:
    """While an actor adds, size, rate, tape and chart of an open page change without a reload."""
    page.goto(f"{server.url}/buffers/cartpole")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    head = page.locator(".ring [data-live=head]").inner_text()
    label = page.locator(".ring [data-tape]").get_attribute("aria-label")
    page.evaluate("document.body.dataset.same = 'yes'")
    stop = threading.Event()
    actor = threading.Thread(target=_act, args=(server.url, stop))
    actor.start()
    try:
        expect(page.locator(".ring [data-live=head]")).not_to_have_text(head, timeout=10_000)
        expect(page.locator(".tiles [data-live=add_rate]")).not_to_have_text("0", timeout=10_000)
        expect(page.locator(".ring [data-tape]")).not_to_have_attribute("aria-label", label, timeout=10_000)
        expect(page.locator("#rates canvas")).to_be_visible()
    finally:
        stop.set()
        actor.join()
    settled = answer(server, "/buffers/cartpole")

    expect(page.locator(".tiles [data-live=added]")).to_have_text(f"{settled['added']:,}", timeout=5_000)
    assert page.evaluate("document.body.dataset.same") == "yes"
    assert seen.errors == []


def _act(url: str, stop: threading.Event) -> None:
    rng = np.random.default_rng(1)
    with Client(url) as client:
        while not stop.wait(0.1):
            client.buffer("cartpole").add(steps(rng, 16))


def test_list_is_live_too(page: sync_api.Page, server: Served) -> None:
    """An add is seen in the list of buffers within seconds."""
    page.goto(f"{server.url}/buffers")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    with Client(server.url) as client:
        client.buffer("filling").add(steps(np.random.default_rng(2), 10))
    size = answer(server, "/buffers/filling")["size"]

    expect(page.locator("[data-buffer=filling] [data-live=size]")).to_have_text(f"{size:,}", timeout=5_000)


def test_a_sample_is_tried_and_stands_in_the_url(page: sync_api.Page, server: Served, seen: Seen) -> None:
    """A click draws five items in place; the URL's seed draws the same ones again; nothing is counted."""
    before = answer(server, "/buffers/cartpole")["sampled"]
    page.goto(f"{server.url}/buffers/cartpole")
    page.locator("#draw").click()
    expect(page.locator(".sampled tbody tr")).to_have_count(5)
    expect(page).to_have_url(re.compile(r"seed=\d+"))
    seed = page.locator("#seed").inner_text()
    items = page.locator(".sampled tbody tr td:first-child").all_inner_texts()
    drawn = answer(server, f"/buffers/cartpole/sample?batch_size=5&seed={seed}&peek=true&format=json")

    assert [int(item) for item in items] == drawn["indices"]
    assert answer(server, "/buffers/cartpole")["sampled"] == before
    page.locator("#draw").click()
    expect(page.locator("#seed")).not_to_have_text(seed)
    assert seen.errors == []


def test_a_buffer_that_fills_offers_its_sample_when_it_is_ready(page: sync_api.Page, server: Served) -> None:
    """The disabled button gives its reason, and turns into a live one once there is enough."""
    page.goto(f"{server.url}/buffers/filling")
    expect(page.locator("#sample button")).to_be_disabled()
    expect(page.locator("#why-not")).to_contain_text("more timesteps in each row")
    with Client(server.url) as client:
        client.buffer("filling").add(steps(np.random.default_rng(3), 600))

    expect(page.locator("#draw")).to_be_visible(timeout=8_000)
    expect(page.locator("[data-live-pill]")).to_have_text("ready")


def test_distribution_switches_in_place(page: sync_api.Page, server: Served) -> None:
    """A click on Age redraws the histogram and puts the field into the URL; back brings priorities back."""
    page.goto(f"{server.url}/buffers/cartpole")
    expect(page.locator("#distribution [aria-current]")).to_have_text("Priority")
    page.locator("#distribution").get_by_text("Age").click()

    expect(page.locator("#distribution [aria-current]")).to_have_text("Age")
    expect(page).to_have_url(re.compile("field=age"))


def test_theme_is_toggled_and_remembered(page: sync_api.Page, server: Served) -> None:
    """Light by the system's wish; one click makes it dark, also on the next page and after a reload."""
    page.emulate_media(color_scheme="light")
    page.goto(f"{server.url}/buffers")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(root).to_have_attribute("data-theme", "dark")

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.goto(f"{server.url}/vaults")
    expect(root).to_have_attribute("data-theme", "dark")


def test_lists_are_filtered_while_typing(page: sync_api.Page, server: Served) -> None:
    """Typing a part of a name leaves the one buffer, keeps the focus, and stands in the URL."""
    page.goto(f"{server.url}/buffers")
    page.get_by_role("searchbox").press_sequentially("fram", delay=20)

    expect(page.locator("tr[data-buffer]")).to_have_count(1)
    expect(page).to_have_url(re.compile("query=fram"))
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_frames_are_pictures(page: sync_api.Page, server: Served) -> None:
    """A sampled uint8 frame is an image that the browser could decode."""
    page.goto(f"{server.url}/buffers/frames?seed=1")

    expect(page.locator("img.frame")).to_have_count(5)
    assert page.locator("img.frame").first.evaluate("image => image.naturalWidth") == 84


def test_vault_steps_are_chosen_and_downloaded(page: sync_api.Page, server: Served) -> None:
    """Choosing steps 10 to 13 of row 2 shows them, and the npz button saves just these."""
    page.goto(f"{server.url}/vaults/cartpole/run1")
    page.get_by_label("from").fill("10")
    page.get_by_label("to", exact=True).fill("13")
    page.get_by_label("row").fill("2")
    page.get_by_label("action").uncheck()
    page.get_by_role("button", name="Show").click()

    expect(page.locator("table.steps tbody th")).to_have_text(["10", "11", "12"])
    with page.expect_download() as download:
        page.get_by_role("button", name="npz").click()
    assert download.value.suggested_filename == "cartpole-run1-head-10-13.npz"
    with np.load(download.value.path()) as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {"obs": (4, 3, 4), "reward": (4, 3)}


def test_version_is_opened_from_its_row(page: sync_api.Page, server: Served) -> None:
    """A click on v1 shows the steps of version 1, which has its tag and digest beside it."""
    page.goto(f"{server.url}/vaults/cartpole/run1")
    version = answer(server, "/vaults/cartpole/run1/versions/1")
    row = page.locator("#versions tr", has_text="v1")
    expect(row).to_contain_text("baseline")
    expect(row).to_contain_text(version["digest"].removeprefix("sha256-")[:10])
    row.get_by_role("link", name="v1").click()

    expect(page).to_have_url(re.compile("ref=v1"))
    expect(page.locator("#slice header")).to_contain_text(f"of {version['length']:,}, row 0, v1")


def test_snippets_are_copied_and_run(page: sync_api.Page, server: Served) -> None:
    """The Python snippet on the clipboard, run as it is, prints the shape of a batch."""
    import subprocess
    import sys

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{server.url}/buffers/cartpole")
    page.locator("[data-copy=sample-python]").click()
    expect(page.locator("[data-copy=sample-python]")).to_have_text("Copied")
    code = page.evaluate("navigator.clipboard.readText()")
    shell = page.locator("#sample-curl").inner_text()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout) == (0, "(32,)\n"), ran.stderr
    assert (
        len(
            json.loads(subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60).stdout)[
                "indices"
            ]
        )
        == 2
    )


def test_pages_work_without_javascript(browser: sync_api.Browser, server: Served) -> None:
    """Without scripts the numbers, the chart, the histogram and a drawn sample are there."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/buffers/cartpole")
    page.locator("#draw").click()

    expect(page.locator(".sampled tbody tr")).to_have_count(5)
    expect(page.locator(".chart-still")).to_be_visible()
    assert page.locator(".bars rect").count() > 0
    context.close()


def test_a_buffer_is_changed_in_place(page: sync_api.Page, server: Served, seen: Seen) -> None:
    """Save changes the buffer and what else shows it; a refusal is told above the form; nothing reloads."""
    page.goto(f"{server.url}/buffers/frames")
    page.evaluate("document.body.dataset.same = 'yes'")
    form = page.locator("#controls form")
    form.get_by_label("Durability").select_option("os")
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#controls [role=status]")).to_have_text("Saved.")
    expect(page.locator("#risk")).to_have_text("survives a crash")
    assert answer(server, "/buffers/frames")["durability"] == "os"
    assert seen.errors == []

    form.get_by_label("error_buffer").fill("100")
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#controls [role=alert]")).to_contain_text("`samples_per_insert` must be given")
    expect(form.get_by_label("error_buffer")).to_have_value("100")
    form.get_by_label("samples_per_insert").fill("4")
    form.get_by_label("min_size").fill("8")
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#config")).to_contain_text("4 samples per insert, from 8 on, ± 100")
    assert answer(server, "/buffers/frames")["limiter"]["error_buffer"] == 100
    assert page.evaluate("document.body.dataset.same") == "yes"
    assert all("422" in error for error in seen.errors)


def test_a_snapshot_is_taken_restored_and_deleted(page: sync_api.Page, server: Served, seen: Seen) -> None:
    """The list grows in place; Restore leads to the new buffer; Delete asks first."""
    page.goto(f"{server.url}/buffers/cartpole")
    held = answer(server, "/buffers/cartpole")["size"]
    panel = page.locator("#snapshots")
    panel.get_by_role("button", name="Take a snapshot").click()
    expect(panel.locator("li")).to_have_count(1)
    expect(panel.locator("li")).to_contain_text(f"{held:,} timesteps")
    expect(page).to_have_url(f"{server.url}/buffers/cartpole")
    panel.get_by_label("Name of the buffer").fill("cartpole")
    panel.get_by_role("button", name="Restore").click()
    expect(panel.locator("[role=alert]")).to_contain_text("`name` must be new, got 'cartpole'")
    panel.get_by_label("Name of the buffer").fill("once-more")
    panel.get_by_role("button", name="Restore").click()

    expect(page).to_have_url(f"{server.url}/buffers/once-more")
    assert answer(server, "/buffers/once-more")["size"] == held
    page.goto(f"{server.url}/buffers/cartpole")
    page.once("dialog", lambda dialog: dialog.dismiss())
    panel.get_by_role("button", name="Delete").click()
    expect(panel.locator("li")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    panel.get_by_role("button", name="Delete").click()
    expect(panel.locator("li")).to_have_count(0)
    assert all("409" in error for error in seen.errors)
    with Client(server.url) as client:
        client.buffer("once-more").delete(discard=True)


def test_forms_work_without_javascript(browser: sync_api.Browser, server: Served) -> None:
    """Save and Take a snapshot lead back to their place on the page."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/buffers/filling")
    page.get_by_label("Durability").select_option("none")
    page.get_by_role("button", name="Save").click()

    expect(page).to_have_url(f"{server.url}/buffers/filling#controls")
    assert answer(server, "/buffers/filling")["durability"] == "none"
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.locator("#snapshots li")).to_have_count(1)
    context.close()


def test_every_heading_begins_where_its_panel_does(page: sync_api.Page, server: Served) -> None:
    """Also that of what is next in a queue, which has nothing beside it."""
    with Client(server.url) as client:
        queue = client.create_buffer(
            "line", "trajectory_queue", SPEC, add_batch_size=4, add_sequence_length=4,
            sample_sequence_length=4, max_length_time_axis=16,
        )  # fmt: skip
        queue.add(steps(np.random.default_rng(4), 8))
        page.goto(f"{server.url}/buffers/line")
        lefts = page.evaluate("""() => [...document.querySelectorAll('.panel > header > h2')].map(
            (h) => h.getBoundingClientRect().x - h.parentElement.getBoundingClientRect().x)""")
        queue.delete(discard=True)

    assert len(lefts) > 6 and set(lefts) == {0}


def test_every_control_has_a_name(page: sync_api.Page, server: Served) -> None:
    """Each link, button and field has a name for a screen reader, and Tab reaches the first link."""
    nameless = """() => [...document.querySelectorAll(
        'a[href], button, select, input:not([type=hidden])')].filter((node) => !node.hidden
            && !node.textContent.trim()
            && !node.getAttribute('aria-label') && !node.labels?.length).length"""
    for path in PAGES[:-1]:
        page.goto(server.url + path)
        assert page.evaluate(nameless) == 0, path
    page.keyboard.press("Tab")

    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"


def test_stream_comes_back_after_the_page_was_cut_off(page: sync_api.Page, server: Served) -> None:
    """Offline, the page says so; online again it is live within seconds."""
    page.goto(f"{server.url}/buffers")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.context.set_offline(True)
    time.sleep(0.5)
    page.context.set_offline(False)

    expect(page.locator("#pulse")).to_have_attribute("data-state", "live", timeout=15_000)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_leaf_name_wraps(page: sync_api.Page, server: Served, width: int) -> None:
    """Type and shape stay in sight, nothing to copy scrolls sideways, and neither does the page."""
    spec = {"observation/" + "_".join(["part_of_a_long_name"] * 7): SPEC["obs"], "reward": SPEC["reward"]}
    with Client(server.url) as client:
        wide = client.create_buffer(
            "wide", "flat", spec, max_length=64, min_length=2, sample_batch_size=2, persist_to="wide/run1",
        )  # fmt: skip
        page.set_viewport_size({"width": width, "height": 900})
        for url in ("/buffers/wide", "/vaults/wide/run1"):
            page.goto(server.url + url)
            for box in page.locator(".snippet pre, [role=region]:has(.schema)").all():
                assert box.evaluate("e => e.scrollWidth <= e.clientWidth"), box.inner_text()
            assert page.evaluate("document.documentElement.scrollWidth") == width
        wide.delete(discard=True)
