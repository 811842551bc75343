"""Tables, sentences, figure and report of steps of reinforcement learning, and comparison with published times.

Published times are in `data/rollouts.toml`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import in_short
from jaxscale.report.document import Report
from jaxscale.report.style import BLUE, GREEN, INK, ORANGE, entries_of, legend_below, seconds, single_axes
from jaxscale.rollouts.rollout_batch import NO_LIMIT, RolloutBatch
from jaxscale.rollouts.rollout_step import TERMS, RolloutStep, rollout_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure


REQUIRED = ("model", "gpu", "n_gpus", "batch", "quoted")
"""Keys of a published step that are no options of `rollout_step`."""


@dataclass(frozen=True)
class PublishedStep:
    """Published step of reinforcement learning, with measured time.

    Attributes:
        report: key of the report in `data/rollouts.toml`.
        settings: settings of the step, including those common to its report.
        seconds: published time of the step [s].
        assumed: settings that are assumed, because the report does not state them.
        report_states_lengths: whether the report states the lengths of prompts and answers.
    """

    report: str
    settings: Mapping[str, Any]
    seconds: float
    assumed: str
    report_states_lengths: bool

    @functools.cached_property
    def predicted(self) -> RolloutStep:
        """Prediction of the step by `rollout_step`."""
        options = {name: value for name, value in self.settings.items() if name not in REQUIRED}
        shapes = published_reports()["shapes"]
        for name in ("reward", "critic"):
            if options.get(name) in shapes:
                options[name] = Transformer(**shapes[options[name]]["fields"])
        model, gpu, n_gpus = (self.settings[name] for name in ("model", "gpu", "n_gpus"))
        return rollout_step(model, gpu, RolloutBatch(**self.settings["batch"]), n_chips=n_gpus, **options)

    @property
    def error(self) -> float:
        """Predicted over published time, less 1 [1]."""
        return self.predicted.total / self.seconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the published time is inside the 90 % interval of the prediction."""
        lo, hi = self.predicted.interval
        return lo <= self.seconds <= hi


@functools.cache
def published_reports() -> Mapping[str, Any]:
    """Content of `data/rollouts.toml`."""
    return read_toml(data_path("rollouts.toml"))


def published_steps() -> tuple[PublishedStep, ...]:
    """Published steps of all reports, in the order of `data/rollouts.toml`."""
    steps = []
    for name, report in published_reports()["reports"].items():
        for step in report["steps"]:
            seconds = step["quoted"] * report["quoted_unit_s"]
            settings = {**report["settings"], **step}
            steps.append(PublishedStep(name, settings, seconds, report["assumed"], report["lengths_stated"]))
    return tuple(steps)


MOST_SPLITS = 5
"""Splits that the screen shows, the fastest ones [1]."""

NOTHING = 1e-5
"""Share of a step below which a term is none: what is left of the tail of equal lengths by rounding [1]."""

SHORT = ("gen", "tail", "score", "train", "move", "beside")
"""Short heads of the terms."""

COLUMNS = (
    text_column("mode"),
    TableColumn("generating chips", "chips", stays=True),
    *(TableColumn(name, short) for name, short in zip(TERMS, SHORT, strict=True)),
    TableColumn("step", stays=True),
)
"""Columns of the table of modes and splits."""


def steps_table(step: RolloutStep, title: str, most: int | None = MOST_SPLITS) -> Table:
    """Table of the terms of a step on shared chips and on the fastest splits of the chips.

    Args:
        step: a step with its alternatives.
        title: title of the table.
        most: largest number of splits; all splits where None [1].
    """
    splits = [one for one in step.alternatives if one.mode == "split"]
    fastest = sorted(splits, key=lambda one: one.total)[:most]
    shared = [one for one in step.alternatives if one.mode == "shared"]
    shown = [*shared, *sorted(fastest, key=lambda one: one.generation_chips)]
    rows = []
    for one in shown:
        times = [getattr(one, name) for name in TERMS]
        cells = [seconds(time) if time > NOTHING * one.total else "-" for time in times]
        rows.append((one.mode, f"{one.generation_chips:g}", *cells, seconds(one.total)))
    return make_table(title, COLUMNS, rows)


def step_sentences(step: RolloutStep) -> list[str]:
    """Sentences on the time of a step, the cost of its tail, its engine and its training plan."""
    place = "shared chips" if step.mode == "shared" else f"{step.generation_chips:g} generating chips"
    price = f", price {step.tail_price:.3g}" if np.isfinite(step.tail_price) else ""
    tail = f"{seconds(step.tail_seconds)} of a step, {step.tail_chip_hours:.3g} chip hours{price}"
    lo, hi = map(seconds, step.interval)
    return [
        f"{step.mode}: {seconds(step.total)} a step on {step.n_chips:g} chips ({place}), 90 % interval {lo} to {hi}",
        f"answers: {step.mean_len:.0f} tokens on average, the longest {step.longest_len:.0f}",
        f"price of the tail: {tail if step.tail_seconds > NOTHING * step.total else 'none'}",
        f"engine: {step.engine_words}",
        f"training plan: {in_short(step.plan)}",
    ]


def length_remark(step: RolloutStep, batch: RolloutBatch, model: Transformer) -> list[str]:
    """Remark on answers without a maximum that exceed the learned positions or training sequences of the model."""
    learned = number(model.position_embeddings)
    most, what = (learned, "learned positions") if learned else (number(model.seq_len), "tokens of training sequences")
    end = number(batch.input_len) + step.longest_len
    if number(batch.max_output_len) < NO_LIMIT or end <= most:
        return []
    told = f"the longest ends at {end:.0f} tokens, beyond the {most:.0f} {what} of the model"
    return [f"answers have no maximum: {told}; --max-output-len states one"]


def rollout_figure(step: RolloutStep, title: str = "") -> "Figure":
    """Figure of the times of generation, of training and of the step against the share of generating chips.

    Args:
        step: a step with its alternatives.
        title: title of the figure.
    """
    splits = [one for one in step.alternatives if one.mode == "split"]
    shares = np.asarray([one.generation_chips / one.n_chips for one in splits])
    with single_axes() as (figure, axes):
        generating = [one.generation + one.tail for one in splits]
        axes.plot(shares, generating, color=ORANGE, label="generation with its tail")
        axes.plot(shares, [one.generation for one in splits], color=ORANGE, ls=":", label="answers of equal length")
        axes.plot(shares, [one.scoring + one.training for one in splits], color=GREEN, label="scoring and training")
        axes.plot(shares, [one.total for one in splits], color=BLUE, lw=2.5, marker="o", label="step, split chips")
        for one in step.alternatives:
            if one.mode == "shared":
                axes.axhline(one.total, color=INK, ls="--", label="step, shared chips")
        axes.set(xlabel="share of the chips that generate", ylabel="time [s]", title=title, xlim=(0.0, 1.0))
        axes.set_yscale("log")
        legend_below(figure, entries_of(axes))
    return figure


def rollout_report(step: RolloutStep, title: str) -> Report:
    """Report of a step: sentences, table of every split, figure."""
    report = Report(title)
    for line in step_sentences(step):
        report.text(line)
    report.add(steps_table(step, "Terms of a step by mode and split", None))
    if any(one.mode == "split" for one in step.alternatives):
        report.figure("splits", rollout_figure(step), "Time of a step against the share of chips that generate.")
    return report


PUBLISHED = (
    text_column("report"),
    text_column("model"),
    TableColumn("chips"),
    text_column("step"),
    text_column("lengths"),
    TableColumn("published", "publ."),
    TableColumn("predicted", "pred."),
    TableColumn("error"),
    text_column("inside"),
)
"""Columns of the table of published steps; stars mark lengths of prompts and answers that are assumed.

The last column says whether the published time is inside the 90 % interval.
"""


def published_table(steps: Sequence[PublishedStep]) -> Table:
    """Table of published beside predicted times of steps, with the errors.

    The last rows give the median absolute error and the number of published times inside the 90 % interval, by report.
    """
    rows = []
    for one in steps:
        told = one.settings
        way = f"{told['algorithm']} {told['mode']}"
        places = (one.report, told["model"], told["n_gpus"], way, lengths_of(one))
        times = (seconds(one.seconds), seconds(one.predicted.total), f"{100.0 * one.error:+.0f} %")
        rows.append((*places, *times, "yes" if one.is_inside else "no"))
    reports = list(dict.fromkeys(one.report for one in steps))
    for name in [*reports, *(["all"] if len(reports) > 1 else [])]:
        of_report = [one for one in steps if name in ("all", one.report)]
        median = f"{100.0 * np.median([abs(one.error) for one in of_report]):.0f} %"
        rows.append((name, "median", len(of_report), *[""] * 4, median, sum(one.is_inside for one in of_report)))
    return make_table("Published and predicted time of a step", PUBLISHED, rows)


def lengths_of(step: PublishedStep) -> str:
    """Lengths of prompts and answers of a published step as text, `256 + 512, cv 1`; a star marks assumed lengths."""
    batch = step.settings["batch"]
    spread = f", cv {batch['length_cv']:g}" if batch["length_cv"] else ""
    mark = "" if step.report_states_lengths else "*"
    return f"{batch['input_len']} + {batch['output_len']}{spread}{mark}"
