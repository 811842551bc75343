"""The page in a real browser: states, figures against the public functions, sliders, and what is refused."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import equinox as eqx
import numpy as np
import pytest

import jaxscale as js
from jaxscale.explore.page_server import TOKEN
from jaxscale.explore.page_state import TABS, PageInputs, PageState, page_inputs, state_of
from jaxscale.explore.page_tables import tab_records
from jaxscale.explore.page_work import page_view
from jaxscale.report.style import seconds

for extra in ("altair", "marimo", "uvicorn", "zmq", "selenium"):
    pytest.importorskip(extra, reason=f"the page needs {extra}: the extras `explore` and `test`")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("no chromium and chromedriver on this machine", allow_module_level=True)
if not os.environ.get("JAXSCALE_BROWSER"):
    pytest.skip("JAXSCALE_BROWSER=1 drives a browser, which needs an idle machine", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FIRST_PAINT, SLIDER = 6.0, 0.5
"""Longest waits for the first figures of a page and for those after a slider has moved, on two idle cores [s]."""

OWN = "n_layers = 24\nd_model = 2048\nn_heads = 16\nd_ff = 8192\nvocab_size = 50304\n"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the user's own."""
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def address(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page that serves the user's own model."""
    command = [sys.executable, "-m", "jaxscale", "explore", "--model", str(own), "--gpu", "NVIDIA A100-SXM4-80GB"]
    command += ["--n-gpus", "8", "--global-batch", "64", "--fit", "prior", "--json"]
    errors = tmp_path_factory.mktemp("errors") / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert "url" in "".join(lines), errors.read_text()
    yield json.loads("".join(lines))["url"]
    process.terminate()
    process.wait(20)
    process.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1500,1500"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def inputs(own: Path) -> PageInputs:
    """What the page reads."""
    return page_inputs((str(own),), fit="prior")


def of_state(address: str, state: PageState) -> str:
    """Address of a state, with the token of the page."""
    return f"{address.split('?')[0]}?{urlencode({TOKEN: token_of(address)})}&{state.query()}"


def token_of(address: str) -> str:
    """Token in an address."""
    return dict(parse_qsl(urlsplit(address).query))[TOKEN]


def text_of(browser: Any, css: str) -> str:
    """Text of the first element of a kind, empty where there is none; elements come and go while the page works."""
    return browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css)


def until(browser: Any, css: str) -> str:
    """Text of the first element of a kind, once it has one or is a loaded image: a page that draws anew is empty."""
    script = """const one = document.querySelector(arguments[0]);
        return one !== null && (one.textContent.trim() !== '' || one.naturalWidth > 0)"""
    WebDriverWait(browser, 60, 0.02).until(lambda page: page.execute_script(script, css))
    return text_of(browser, css)


def opened(browser: Any, url: str) -> float:
    """Open a page; time until its figures are there [s]."""
    begin = time.monotonic()
    browser.get(url)
    until(browser, "dl.figures dd, .refusal")
    return time.monotonic() - begin


def step_shown(browser: Any) -> str:
    """Step time that the page shows."""
    return text_of(browser, "dl.figures dd")


def cells(browser: Any) -> list[list[str]]:
    """Rows of the table that the page shows."""
    until(browser, ".wide table")
    script = (
        "return [...document.querySelectorAll('.wide tr')].map(row => [...row.children].map(cell => cell.innerText))"
    )
    return browser.execute_script(script)


def planned(state: PageState, inputs: PageInputs) -> js.PlanChoice:
    """Ranked plans of a state by the public function."""
    options = {"fit": inputs.fit, "levels": inputs.question(state).levels, "space": inputs.question(state).space}
    return js.best_plan(inputs.transformer(state), inputs.cluster(state), state.global_batch, **options)


def test_the_own_model_opens_first(browser: Any, address: str, inputs: PageInputs):
    query = dict(parse_qsl(urlsplit(address).query))
    assert len(query.pop(TOKEN)) > 20
    state = state_of(query)
    assert (state.gpu, state.n_gpus, state.global_batch) == ("a100-80gb", 8, 64)
    opened(browser, address)
    assert step_shown(browser) == seconds(planned(state, inputs).best.step_time)
    WebDriverWait(browser, 10).until(lambda page: TOKEN not in page.current_url)  # nobody copies it with a state


def test_a_model_of_the_catalogue_and_its_first_paint(browser: Any, address: str, inputs: PageInputs):
    state = PageState()
    paints = [opened(browser, of_state(address, state)) for _ in range(3)]
    assert step_shown(browser) == seconds(planned(state, inputs).best.step_time)
    assert min(paints) <= FIRST_PAINT


def test_fixed_degrees_and_the_ranking(browser: Any, address: str, inputs: PageInputs):
    state = PageState(tp=4, pp=2, tab="plans")
    opened(browser, of_state(address, state))
    choice, (head, *rows) = planned(state, inputs), cells(browser)
    assert len(rows) == len(choice.top)
    for row, scored in zip(rows, choice.top, strict=True):
        shown = dict(zip(head, row, strict=True))
        assert shown["step"] == seconds(scored.step_time)
        assert shown["MFU"] == f"{100 * scored.mfu:.1f} %"
        assert shown["memory"] == f"{scored.memory / 1e9:.1f} GB"
    assert text_of(browser, ".plan").startswith("Plan: dp\u00a08  tp\u00a04  pp\u00a02")
    code = until(browser, ".codehilite, pre")
    assert (
        "jaxscale plan --model llama3-8b --gpu h100-80gb --n-gpus 64 --global-batch 512 --set tp=4 --set pp=2" in code
    )


def test_sensitivities(browser: Any, address: str, inputs: PageInputs):
    state = PageState(tab="sensitivity")
    opened(browser, of_state(address, state))
    model, coefficients = inputs.transformer(state), inputs.fit.coefficients(inputs.question(state).levels)
    plan = planned(state, inputs).best.plan
    slopes = js.elasticity(lambda chips: js.step_time(model, plan, chips, coefficients).total, inputs.cluster(state))
    shown = {row[0]: row[1] for row in cells(browser)[1:]}
    assert shown["memory bandwidth"] == f"{float(slopes.chip.hbm_bandwidth):+.3f} %"


def test_a_slider_moves_figures_and_address(browser: Any, address: str, inputs: PageInputs):
    state = PageState(network=0.25, tab="chips")
    opened(browser, of_state(address, state))
    plan, cluster = planned(state, inputs).best.plan, inputs.cluster(state)
    model, coefficients = inputs.transformer(state), inputs.fit.coefficients(inputs.question(state).levels)

    def expected(factor: float) -> str:
        bandwidth = np.asarray(cluster.network.bandwidth) * np.asarray([1.0, factor, factor])
        network = eqx.tree_at(lambda net: net.bandwidth, cluster.network, bandwidth)
        step = js.step_time(model, plan, js.Cluster(cluster.chip, network, cluster.n_chips), coefficients)
        return seconds(float(step.total))

    assert step_shown(browser) == expected(0.25) != expected(1.0)
    assert [row[1] for row in cells(browser)[1:] if row[0] == str(state.n_gpus)] == [expected(0.25)]
    script = """const sliders = [...document.querySelectorAll('marimo-slider')].map(one =>
        one.shadowRoot.querySelector('[role=slider]'));
        return sliders.filter(one => one.getClientRects().length > 0)"""
    network, waits = browser.execute_script(script)[-1], []
    browser.execute_script("arguments[0].scrollIntoView()", network)
    for factor in (0.3, 0.35, 0.42, 0.5, 0.59, 0.71):
        before, begin = step_shown(browser), time.monotonic()
        network.send_keys(Keys.ARROW_RIGHT)
        WebDriverWait(browser, 30, 0.005).until(lambda _, old=before: step_shown(browser) not in ("", old))
        waits.append(time.monotonic() - begin)
        assert step_shown(browser) == expected(factor)
    WebDriverWait(browser, 10).until(lambda page: "network=0.71" in page.current_url)
    assert min(waits) <= SLIDER


def sized(browser: Any, width: int) -> None:
    """Give the browser a window of some width [pixel]."""
    size = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def usual_size(browser: Any) -> Iterator[None]:
    """Give the browser its own size again after a test."""
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CUT = """const cut = [], sides = one => one.getBoundingClientRect();
    const visit = (tree) => { for (const one of tree.querySelectorAll("*")) {
        if (one.shadowRoot) visit(one.shadowRoot);
        const scrolls = one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible";
        const isBox = one.matches(".wide, pre, .truncate") || one.closest("select, svg, aside") !== null;
        if (scrolls && one.clientWidth > 1 && !isBox) cut.push(one.outerHTML.slice(0, 200));
        if (one.matches("td, th, svg.marks") && one.closest(arguments[0]) === null && sides(one).right > innerWidth)
            cut.push(one.outerHTML.slice(0, 200));
    } };
    visit(document.body);
    return cut"""
"""What stands beyond the right edge of the window, or scrolls sideways other than tables and code in their boxes."""


@pytest.mark.parametrize("width", [1400, 900, 390])
def test_everything_is_whole_on_wide_and_narrow_screens(browser: Any, address: str, usual_size: None, width: int):
    sized(browser, width)
    for tab in TABS:
        opened(browser, of_state(address, PageState(tab=tab, **({"tp": 4, "pp": 2} if tab == "plans" else {}))))
        until(browser, ".wide table")
        charts(browser)
        scrolling = ".shape .wide" if width < 500 else "no-element"  # seven figures of a shape scroll on a telephone
        assert browser.execute_script(CUT, scrolling) == [], tab
        if tab == "plans":
            for cell in browser.find_elements("css selector", ".plans td"):
                assert cell.rect["x"] >= 0 and cell.rect["x"] + cell.rect["width"] <= width
    browser.execute_script("document.querySelector('.plan').style.width = '2000px'")
    assert browser.execute_script(CUT, "no-element"), "an element wider than the window is noticed"


CHARTS = """const found = [];
    const visit = (tree) => { for (const one of tree.querySelectorAll("*")) {
        if (one.shadowRoot) visit(one.shadowRoot);
        if (one.matches("svg.marks")) found.push(one);
    } };
    visit(document.body);
    return found"""


def charts(browser: Any) -> list[Any]:
    """Charts of the page, once they are drawn."""
    return WebDriverWait(browser, 30, 0.05).until(lambda page: page.execute_script(CHARTS))


def marks(browser: Any, kind: str) -> list[dict[str, Any]]:
    """Marks of the first chart: what they tell of themselves, their colour and their place in the window."""
    script = """arguments[0].scrollIntoView({block: "center"});
        return [...arguments[0].querySelectorAll(arguments[1])].map(one => {
            const place = one.getBoundingClientRect();
            return {told: one.getAttribute("aria-label"), fill: one.getAttribute("fill"),
                    x: place.x + place.width / 2, y: place.y + place.height / 2}})"""
    return browser.execute_script(script, charts(browser)[0], kind)


def hovered(browser: Any, mark: dict[str, Any]) -> str:
    """What the page says of a mark to which the mouse points."""
    for x in (mark["x"] - 3, mark["x"]):
        move = {"type": "mouseMoved", "x": x, "y": mark["y"]}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", move)
    WebDriverWait(browser, 10).until(lambda page: text_of(page, "#vg-tooltip-element.visible"))
    return text_of(browser, "#vg-tooltip-element")


@pytest.mark.parametrize(
    ("tab", "kind", "place"),
    [
        ("step", ".mark-rect path", 1),
        ("plans", ".mark-symbol path", -1),  # the best, which is drawn last
        ("chips", ".mark-symbol path", 1),
        ("shape", ".mark-symbol path", 1),
        ("sensitivity", ".mark-rect path", 1),
    ],
)
def test_a_mark_tells_its_figures(browser: Any, address: str, tab: str, kind: str, place: int):
    opened(browser, of_state(address, PageState(tab=tab)))
    mark = marks(browser, kind)[place]
    told = dict(line.split("\t") for line in re.sub(r"\s*\t\s*", "\t", hovered(browser, mark)).splitlines() if line)
    own = dict(pair.split(": ", 1) for pair in mark["told"].split("; "))
    assert len(told) >= 2
    assert {name: " ".join(text.split()) for name, text in told.items()}.items() <= {
        name: " ".join(text.split()) for name, text in own.items()
    }.items()


@pytest.mark.parametrize("tab", ["plans", "chips", "shape"])
def test_a_chart_zooms(browser: Any, address: str, tab: str):
    opened(browser, of_state(address, PageState(tab=tab)))
    before = marks(browser, ".mark-symbol path")
    middle = browser.execute_script(
        "const place = arguments[0].getBoundingClientRect(); return [place.x + place.width / 2, place.y + 100]",
        charts(browser)[0],
    )
    wheel = {"type": "mouseWheel", "x": middle[0], "y": middle[1], "deltaX": 0, "deltaY": -300}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)

    def apart(drawn: list[dict[str, Any]]) -> float:
        return max(mark["x"] for mark in drawn) - min(mark["x"] for mark in drawn)

    WebDriverWait(browser, 10).until(lambda page: apart(marks(page, ".mark-symbol path")) > 1.1 * apart(before))


def test_chips_that_do_not_fit_are_hollow(browser: Any, address: str, inputs: PageInputs):
    state = PageState(tab="chips")
    opened(browser, of_state(address, state))
    columns, rows = tab_records(page_view(state, inputs), "chips")
    fits = {f"{row[0]:,.0f}": row[columns.index("fits")] for row in rows}
    assert set(fits.values()) == {True, False}
    for mark in marks(browser, ".mark-symbol path"):
        told = dict(pair.split(": ", 1) for pair in (mark["told"] or "").split("; ") if ": " in pair)
        if told and "here" not in told:
            assert (mark["fill"] == "white") == (not fits[f"{float(told['chips'].replace(',', '')):,.0f}"])
    shown = {row[0]: row[-1] for row in cells(browser)[1:]}
    assert shown == {chips: "yes" if inside else "no" for chips, inside in fits.items()}


def test_inputs_have_names_that_are_words(browser: Any, address: str):
    opened(browser, of_state(address, PageState(model="llama3-8b")))
    browser.execute_cdp_cmd("Accessibility.enable", {})
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    kinds = ("combobox", "spinbutton", "textbox", "slider", "radiogroup", "radio", "button")
    told = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored") and node["role"]["value"] in kinds
    ]
    names = {name for _, name in told}
    assert all(name and "<" not in name for _, name in told), told
    labels = {"chips", "batch [sequences]", "tp", "pp", "ZeRO stage", "recompute", "rank of the plan", "width", "view"}
    assert labels | {"model: llama3-8b", "chip: h100-80gb"} <= names
    script = """return [...document.querySelectorAll("marimo-slider")].map(one =>
        one.shadowRoot.querySelector("[role=slider]").ariaValueText)"""
    assert browser.execute_script(script)[:3] == ["1", "1", "20"]


def test_a_chart_saves_itself(browser: Any, address: str):
    opened(browser, of_state(address, PageState(tab="chips")))
    script = """const menu = arguments[0].getRootNode();
        menu.querySelector("summary").click();
        return [...menu.querySelectorAll(".vega-actions a")].map(one => {
            one.dispatchEvent(new MouseEvent("mousedown"));
            return [one.innerText, one.download]})"""
    saved = dict(browser.execute_script(script, charts(browser)[0]))
    assert saved == {"Save as SVG": "jaxscale_chips.svg", "Save as PNG": "jaxscale_chips.png"}
    script = """return fetch(arguments[0].getRootNode().querySelector(".vega-actions a").href)
        .then(answer => answer.text())"""
    WebDriverWait(browser, 10).until(lambda page: page.execute_script(script, charts(page)[0]).startswith("<svg"))


def test_a_file_that_the_command_was_not_given_is_refused(browser: Any, address: str, own: Path):
    other = own.with_name("other.toml")
    other.write_text(OWN, encoding="utf-8")
    opened(browser, of_state(address, PageState(model=str(other))))
    assert "is not in the catalogue" in until(browser, ".refusal")
    assert not step_shown(browser)


def test_the_page_asks_no_other_machine(browser: Any, address: str):
    opened(browser, address)
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
    hosts = {urlsplit(url).netloc for url in sent if url.startswith("http")}
    assert hosts == {urlsplit(address).netloc}


def test_other_hosts_and_other_users_are_refused(address: str):
    port = urlsplit(address).port or 0

    def answer(path: str, host: str = f"127.0.0.1:{port}") -> http.client.HTTPResponse:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", path, headers={"Host": host})
            return connection.getresponse()

    known = f"/?{urlencode({TOKEN: token_of(address)})}"
    let_in = answer(known)
    assert (let_in.status, let_in.headers["Location"]) == (303, "/")
    assert let_in.headers["Set-Cookie"].startswith(f"session_{port}="), "pages of one machine share no cookie"
    assert answer(known, f"evil.example:{port}").status == 403
    # Another user of this machine has no token.
    assert {answer(path).headers["Location"].split("?")[0] for path in ("/", f"/?{TOKEN}=guess")} == {"/auth/login"}
    assert answer("/api/status").status == 401
    own_address = socket.gethostbyname(socket.gethostname())
    if not own_address.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own_address, port), timeout=5)


def test_every_state_differs(inputs: PageInputs):
    states = [PageState(), PageState(tp=4, pp=2), PageState(n_gpus=8)]
    times = {planned(dataclasses.replace(state), inputs).best.step_time for state in states}
    assert len(times) == 3
