"""Figures and plans of the page as people write them."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscale.base.units import DAY, GB
from jaxscale.explore.page_work import PageView
from jaxscale.plans.plan import DEGREES, in_short
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import PLAN_COLUMNS

NO_BREAK = {" ": "\u00a0", "-": "-\u2060"}
"""Blanks and hyphens at which no line breaks."""

PHRASED = {*DEGREES, *PLAN_COLUMNS, "recompute_full"}
"""Choices of a plan that have phrases of their own."""


def headline(view: PageView) -> dict[str, str]:
    """Figures of a state in words, by their label."""
    scale = view.step_time / view.choice.best.step_time
    lo, hi = (seconds(scale * end) for end in view.choice.step_time_interval)
    layers, width = float(view.model.n_layers), float(view.model.d_model)
    return {
        "step": seconds(view.step_time),
        "90 % interval": f"{lo} to {hi}",
        "tokens per second": f"{view.tokens_per_second:,.0f}",
        "MFU": percent(view.now.mfu),
        "memory": f"{view.now.memory / GB:.1f} of {view.capacity / GB:.0f} GB",
        "out of memory": percent(view.oom_probability),
        "layers x width": f"{layers:.0f} x {width:.0f}",
        "parameters": count(view.now.run.params),
        "loss": f"{view.now.run.loss:.3f} nat",
        "run": days(view.now.run.seconds),
    }


def percent(share: float) -> str:
    """A share of 1 in per cent: `52.0 %`, `< 0.1 %`, `0 %`."""
    if 0.0 < share < 1e-3:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if share else "0 %"


def count(number: float) -> str:
    """A large count: `8.03 B`, `405 B`, `125 M`."""
    for factor, unit in ((1e12, "T"), (1e9, "B")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number / 1e6:.3g} M"


def days(duration: float) -> str:
    """Duration of a run: `4.23 days`."""
    return f"{duration / DAY:.3g} days"


def phrases_of(words: Mapping[str, Any]) -> list[str]:
    """Choices of a plan as phrases: `dp 32`, `mb 1 x 16`, `ZeRO-2`, `SP`.

    Args:
        words: fields of the plan, as `Plan.words` gives them.
    """
    return in_short(words).split("  ")


def plan_text(phrases: Sequence[str]) -> str:
    """Phrases on a line that breaks between them alone."""
    return "  ".join(phrase.translate(str.maketrans(NO_BREAK)) for phrase in phrases)


def ranked_plan_texts(ranked: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Ranked plans as lines, and on another line what all of them share, but for data parallelism and microbatches.

    Args:
        ranked: fields of each plan.

    Returns:
        The lines, one for each plan, and the shared phrases.
    """
    told = [phrases_of(words) for words in ranked]
    unusual = [name for name in ranked[0] if name not in PHRASED and len({words[name] for words in ranked}) > 1]
    for phrases, words in zip(told, ranked, strict=True):
        phrases += [f"{name.replace('_', ' ')} {words[name]}" for name in unusual]
    common = set(told[0]).intersection(*told[1:]) if len(told) > 1 else set()
    shared = [phrase for phrase in told[0] if phrase in common and not phrase.startswith(("dp ", "mb "))]
    lines = [plan_text([phrase for phrase in phrases if phrase not in shared]) for phrases in told]
    return lines, plan_text(shared)
