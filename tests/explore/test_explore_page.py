"""The page in a real browser: states, figures against the public functions, sliders, and what is refused."""

import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import equinox as eqx
import numpy as np
import pytest

import jaxscale as js
from jaxscale.explore.page_inputs import PageInputs, page_inputs
from jaxscale.explore.page_state import PageState, state_of
from jaxscale.report.style import seconds

for extra in ("marimo", "uvicorn", "zmq", "selenium"):
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


def root(address: str) -> str:
    """Address without its query."""
    return address.split("?")[0]


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
    state = state_of(dict(pair.split("=") for pair in urlsplit(address).query.replace("%2F", "/").split("&")))
    assert (state.gpu, state.n_gpus, state.global_batch) == ("a100-80gb", 8, 64)
    opened(browser, address)
    assert step_shown(browser) == seconds(planned(state, inputs).best.step_time)


def test_a_model_of_the_catalogue_and_its_first_paint(browser: Any, address: str, inputs: PageInputs):
    state = PageState()
    paints = [opened(browser, f"{root(address)}?{state.query()}") for _ in range(3)]
    assert step_shown(browser) == seconds(planned(state, inputs).best.step_time)
    until(browser, "figure img")
    assert min(paints) <= FIRST_PAINT


def test_fixed_degrees_and_the_ranking(browser: Any, address: str, inputs: PageInputs):
    state = PageState(tp=4, pp=2, tab="plans")
    opened(browser, f"{root(address)}?{state.query()}")
    choice, (head, *rows) = planned(state, inputs), cells(browser)
    assert len(rows) == len(choice.top)
    for row, scored in zip(rows, choice.top, strict=True):
        shown = dict(zip(head, row, strict=True))
        assert (shown["tp"], shown["pp"]) == ("4", "2")
        assert float(shown["step time s"]) == pytest.approx(scored.step_time, rel=1e-3)
    code = until(browser, ".codehilite, pre")
    assert (
        "jaxscale plan --model llama3-8b --gpu h100-80gb --n-gpus 64 --global-batch 512 --set tp=4 --set pp=2" in code
    )


def test_sensitivities(browser: Any, address: str, inputs: PageInputs):
    state = PageState(tab="sensitivity")
    opened(browser, f"{root(address)}?{state.query()}")
    model, coefficients = inputs.transformer(state), inputs.fit.coefficients(inputs.question(state).levels)
    plan = planned(state, inputs).best.plan
    slopes = js.elasticity(lambda chips: js.step_time(model, plan, chips, coefficients).total, inputs.cluster(state))
    shown = {row[0]: float(row[1]) for row in cells(browser)[1:]}
    assert shown["memory bandwidth"] == pytest.approx(float(slopes.chip.hbm_bandwidth), rel=1e-3)
    until(browser, "figure img")


def test_a_slider_moves_figures_and_address(browser: Any, address: str, inputs: PageInputs):
    state = PageState(network=0.25, tab="chips")
    opened(browser, f"{root(address)}?{state.query()}")
    plan, cluster = planned(state, inputs).best.plan, inputs.cluster(state)
    model, coefficients = inputs.transformer(state), inputs.fit.coefficients(inputs.question(state).levels)

    def expected(factor: float) -> str:
        bandwidth = np.asarray(cluster.network.bandwidth) * np.asarray([1.0, factor, factor])
        network = eqx.tree_at(lambda net: net.bandwidth, cluster.network, bandwidth)
        step = js.step_time(model, plan, js.Cluster(cluster.chip, network, cluster.n_chips), coefficients)
        return seconds(float(step.total))

    assert step_shown(browser) == expected(0.25) != expected(1.0)
    rows = cells(browser)[1:]
    assert any(float(row[1]) == pytest.approx(float(expected(0.25).split()[0]), rel=1e-2) for row in rows)
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


def test_a_file_that_the_command_was_not_given_is_refused(browser: Any, address: str, own: Path):
    other = own.with_name("other.toml")
    other.write_text(OWN, encoding="utf-8")
    opened(browser, f"{root(address)}?model={other}")
    assert "is not in the catalogue" in until(browser, ".refusal")
    assert not step_shown(browser)


def test_the_page_asks_no_other_machine(browser: Any, address: str):
    opened(browser, root(address))
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
    hosts = {urlsplit(url).netloc for url in sent if url.startswith("http")}
    assert hosts == {urlsplit(address).netloc}


def test_other_hosts_are_refused(address: str):
    port = urlsplit(address).port or 0

    def status(host: str) -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status

    assert status(f"127.0.0.1:{port}") == 200
    assert status(f"evil.example:{port}") == 403
    own_address = socket.gethostbyname(socket.gethostname())
    if not own_address.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own_address, port), timeout=5)


def test_every_state_differs(inputs: PageInputs):
    states = [PageState(), PageState(tp=4, pp=2), PageState(n_gpus=8)]
    times = {planned(dataclasses.replace(state), inputs).best.step_time for state in states}
    assert len(times) == 3
