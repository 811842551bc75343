"""Controls of the page, and the inputs read from the controls."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.explore.page_state import TABS, PageInputs, PageState, changes, state_of
from jaxscale.explore.page_tables import headline, phrases_of, plan_text, tab_csv, tab_html
from jaxscale.explore.page_work import PageView, page_view
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plans.plan import RECOMPUTE

FACTORS = tuple(round(2.0 ** (quarter / 4), 2) for quarter in range(-8, 9))
"""Steps of the factor sliders [1]."""

TOKENS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
"""Steps of the slider of tokens per active parameter [token]."""

LABELS = {
    "width": "width",
    "depth": "depth",
    "tokens": "tokens per parameter",
    "compute": "peak flop/s",
    "memory_bandwidth": "memory bandwidth",
    "links": "bandwidth in a node",
    "network": "bandwidth between nodes",
}
"""Labels of the sliders, by field of a state."""

DEGREES = (1, 2, 4, 8, 16, 32, 64)
OPEN = "any"

CAPTIONS = {
    "step": "Terms of step time and of peak memory.",
    "plans": "The numbers are ranks of plans; dashed: the most that fits.",
    "sensitivity": "Change of the step time for one per cent more of each quantity, the plan unchanged.",
    "chips": "Strong scaling: the same batch on more or fewer data-parallel replicas. Hollow: does not fit in memory.",
    "shape": "Loss and duration of the run against its size, under the same plan. Hollow: does not fit in memory.",
}

ZOOM = "Drag to move, scroll to zoom, double-click for all."
ZOOMED = ("plans", "chips", "shape")
"""Views with zoomable charts."""


@dataclass(frozen=True)
class Shown:
    """Content of the page: inputs, results, and the reason of a refusal.

    Attributes:
        state: inputs, from the controls.
        view: results for the inputs; None for refused inputs.
        refusal: reason why inputs or address were refused; else empty.
    """

    state: PageState
    view: PageView | None
    refusal: str


def opening_state(query: Mapping[str, Any]) -> tuple[PageState, str]:
    """Inputs from the query of an address; for a refused address the default inputs and the reason.

    Unknown fields are ignored.
    """
    texts = {name: str(value) for name, value in query.items() if name in PageState.__dataclass_fields__}
    try:
        return state_of(texts), ""
    except InputError as error:
        return PageState(), f"address: {error}"


def choices(ui: Any, inputs: PageInputs, state: PageState) -> dict[str, Any]:
    """Controls of model, cluster, batch and plan, by field of `PageState`."""
    count = {"start": 1, "stop": 10**9, "step": 1, "full_width": True}
    controls = {
        "model": _words(ui, "model", inputs.models(), state.model),
        "gpu": _words(ui, "chip", inputs.chips(), state.gpu),
        "n_gpus": ui.number(value=state.n_gpus, label="chips", **count),
        "global_batch": ui.number(value=state.global_batch, label="batch [sequences]", **count),
        "seq_len": ui.number(value=state.seq_len, label="sequence [tokens], 0: the model's", **{**count, "start": 0}),
        "framework": _words(ui, "framework", ["", *inputs.frameworks()], state.framework),
        "precision": _words(ui, "precision", list(PRECISIONS), state.precision),
    }
    for name in ("tp", "pp", "cp", "ep", "micro_batch_size"):
        own = getattr(state, name)
        # A degree of the address is a choice as well; 0 is open.
        degrees = sorted({*DEGREES, own} - {0})
        options = {OPEN: 0, **{str(degree): degree for degree in degrees}}
        label = name.replace("_", " ").replace("micro batch size", "microbatch")
        controls[name] = ui.dropdown(options, value=str(own) if own else OPEN, label=label, full_width=True)
    for name, words in (("zero_stage", ("0", "1", "2", "3")), ("recompute", RECOMPUTE)):
        own, options = getattr(state, name), {OPEN: "", **{word: word for word in words}}
        label = "ZeRO stage" if name == "zero_stage" else name
        controls[name] = ui.dropdown(options, value=own or OPEN, label=label, full_width=True)
    ranks = {str(rank): rank for rank in sorted({*range(1, 11), state.rank})}
    controls["rank"] = ui.dropdown(ranks, value=str(state.rank), label="rank of the plan", full_width=True)
    return controls


def _words(ui: Any, label: str, names: list[str], chosen: str) -> Any:
    # A name outside the list stays a choice.
    names = names if chosen in names else [chosen, *names]
    options = {name or "that of the fit": name for name in names}
    return ui.dropdown(
        options, value=chosen or "that of the fit", label=label, searchable=len(names) > 20, full_width=True
    )


def sliders(ui: Any, state: PageState) -> dict[str, Any]:
    """Sliders of the factors on model and hardware, and of the tokens, by field of `PageState`."""
    controls = {}
    for name, label in LABELS.items():
        # A value of the address is a step as well.
        steps = sorted({*(TOKENS if name == "tokens" else FACTORS), getattr(state, name)})
        controls[name] = ui.slider(
            steps=steps, value=getattr(state, name), label=label, show_value=True, full_width=True
        )
    return controls


def tab_choice(ui: Any, state: PageState) -> Any:
    """Control that selects the tab of the page."""
    return ui.radio(list(TABS), value=state.tab, label="view", inline=True)


def arranged(mo: Any, chosen: Any, moved: Any) -> Any:
    """Layout of the controls in the sidebar."""
    run = [chosen[name] for name in ("model", "gpu", "n_gpus", "global_batch", "seq_len", "framework", "precision")]
    pairs = [("tp", "pp"), ("cp", "ep"), ("micro_batch_size", "zero_stage"), ("recompute", "rank")]
    plan = [mo.hstack([chosen[name] for name in pair], widths="equal") for pair in pairs]
    shape = [moved[name] for name in ("width", "depth", "tokens")]
    machine = [moved[name] for name in ("compute", "memory_bandwidth", "links", "network")]
    parts = [("Run", run), ("Plan", plan), ("What if: model", shape), ("What if: hardware", machine)]
    return mo.vstack([item for title, items in parts for item in (mo.md(f"### {title}"), *items)], gap=0.4)


def shown(inputs: PageInputs, values: Mapping[str, Any], refusal: str = "") -> Shown:
    """Content of the page for the given values of the controls."""
    state = PageState()
    try:
        # Values of controls in the types of the state.
        state = PageState(**{name: type(getattr(state, name))(value) for name, value in values.items()})
        return Shown(state, page_view(state, inputs), refusal)
    except InputError as error:
        return Shown(state, None, str(error))


def tell_address(query: Any, state: PageState) -> None:
    """Write the inputs into the query of the page's address."""
    wanted, present = changes(state), query.to_dict()
    for name in PageState.__dataclass_fields__:
        if name in wanted and present.get(name) != wanted[name]:
            query.set(name, wanted[name])
        # Defaults stay out of the address.
        elif name in present and name not in wanted:
            query.remove(name)


def headline_html(seen: Shown) -> str:
    """HTML of the main results and the plan, or of the reason of a refusal."""
    refusal = f'<p class="refusal" role="alert">{html.escape(seen.refusal)}</p>' if seen.refusal else ""
    if seen.view is None:
        return refusal
    cells = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd></div>"
        for label, text in headline(seen.view).items()
    )
    plan = plan_text(phrases_of(seen.view.plan.words()))
    return f'{refusal}<dl class="figures">{cells}</dl><p class="plan">Plan: {html.escape(plan)}</p>'


def body(mo: Any, seen: Shown) -> Any:
    """Charts and tables of the selected tab."""
    assert seen.view is not None
    # The import of Altair is slow, so it waits for the first page.
    from jaxscale.explore.page_charts import tab_charts

    tab = seen.state.tab
    charts = "".join(f'<div class="chart">{mo.as_html(chart).text}</div>' for chart in tab_charts(seen.view, tab))
    caption = html.escape(f"{CAPTIONS[tab]} {ZOOM}" if tab in ZOOMED else CAPTIONS[tab])
    return mo.Html(f'<div class="charts">{charts}</div><p class="caption">{caption}</p>{tab_html(seen.view, tab)}')


def exports(mo: Any, seen: Shown) -> Any:
    """Button for saving the table as CSV, and command lines that reproduce the inputs."""
    assert seen.view is not None
    view, tab = seen.view, seen.state.tab
    button = mo.download(lambda: tab_csv(view, tab).encode(), f"jaxscale_{tab}.csv", "text/csv", label="CSV")
    lines = f"{seen.state.command()}\n{seen.state.explore_command()}"
    return mo.vstack([mo.hstack([button], justify="start"), mo.md(f"```bash\n{lines}\n```")])
