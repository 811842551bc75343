"""Tables of what `fits/evaluate.py` found: errors on software stacks that the calibration never saw."""

from evaluate import REPORTS, SHOTS
from markdown_text import markdown_table, rows_of

from jaxscale.calibration.coefficients import CENTRE_KINDS, OFFSET_KINDS, names
from jaxscale.calibration.record import Fit, load_fit

BEFORE = {
    "stacks_median": 18.0,
    "stacks_mean": 18.0,
    "stacks_covered": 92.0,
    "interval_ratio": 5.3,
    "stacks_after_8": 4.9,
    "reports_median": 28.0,
    "reports_too_fast": 78.0,
}
"""What release 0.1.0 reached on stacks that it had not seen [%], ratio [1]."""

STRANGERS = {
    "stacks_median": "stacks left out, median of their medians [%]",
    "stacks_mean": "the same, mean [%]",
    "stacks_mean_without_nanotron": "the same without nanotron [%]",
    "stacks_after_pace": "median after one common factor for each stack [%]",
    "stacks_covered": "inside the 90 % interval, mean over stacks [%]",
    "interval_ratio": "upper over lower end of the interval, median [1]",
    "stacks_after_1": "after a fit of 1 run, median over stacks [%]",
    "stacks_after_3": "after 3 runs [%]",
    "stacks_after_8": "after 8 runs [%]",
    "stacks_after_16": "after 16 runs [%]",
    "reports_median": "public reports, repository left out, median [%]",
    "reports_dense": "of dense models [%]",
    "reports_mixtures": "of mixtures [%]",
    "reports_too_fast": "predicted too fast [%]",
    "reports_covered": "inside the 90 % interval [%]",
    "reports_pairs_right": "pairs of plans more than 3 % apart put in the right order [%]",
}
"""What each figure of fits/evaluation_totals.csv says, in the order of the table."""


def figures_of_strangers() -> dict[str, float]:
    """Figures over all stacks by name, as `fits/evaluate.py` wrote them [%], ratios [1]."""
    return {row["figure"]: float(row["value"]) for row in rows_of("evaluation_totals.csv")}


def strangers_table() -> str:
    """Errors on stacks that the calibration never saw, before and now, as a Markdown table."""
    now = figures_of_strangers()
    lines = [
        (said, f"{BEFORE[name]:g}" if name in BEFORE else "-", f"{now[name]:.3g}") for name, said in STRANGERS.items()
    ]
    return markdown_table(("figure", "0.1.0", "now"), lines)


def stacks_table() -> str:
    """Errors by stack left out, alone and with some of its runs, and of its peaks, as a Markdown table."""
    head = ("stack left out", "n", "median", "bias", "after one factor", *(f"with {n} runs" for n in SHOTS), "memory")
    lines = []
    for row in rows_of("evaluation.csv"):
        if not row["stack"].startswith(REPORTS):
            cells = (row["median"], row["after_pace"], *(row[f"after_{n}"] for n in SHOTS), row["memory"])
            median, pace, *few = (f"{float(cell):.1f}".replace("nan", "-") for cell in cells)
            lines.append((row["stack"], row["n"], median, f"{float(row['bias']):+.0f}", pace, *few))
    return markdown_table(head, lines)


def hierarchy() -> str:
    """What the shipped calibration is made of, drawn as a tree with the number of free effects."""
    fit = load_fit()
    centre = fit.parent or fit
    stages = {
        "centre, for everybody": (centre, CENTRE_KINDS),
        "offsets, for stacks that were fitted": (fit, OFFSET_KINDS),
    }
    lines = [f"coefficients, one value each: {len(names())}"]
    for title, (record, kinds) in stages.items():
        counts = {kind: effects_of(record, kind) for kind in kinds}
        lines.append(f"+- {title}: {sum(counts.values())} effects")
        lines += [f"|  +- {kind.replace('_', ' ')}: {count}" for kind, count in counts.items()]
    return "\n".join(("```text", *lines, "```"))


def effects_of(fit: Fit, kind: str) -> int:
    """Shifts of single coefficients that levels of a kind have in a fit [1]."""
    return sum(len(effect.shifts) for effect in fit.effects if effect.kind == kind)
