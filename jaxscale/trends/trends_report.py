"""Results of `jaxscale trends` for a deployment over a range of chips: document, table and figure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.base.errors import InputError
from jaxscale.base.table import Table, TableColumn, make_table
from jaxscale.base.units import GB
from jaxscale.costs.memory import Memory
from jaxscale.plans.rules import CONTINUOUS_RULES, broken_rules, model_columns, obeys
from jaxscale.report.document import Report
from jaxscale.report.figures.panels import Panel, panels
from jaxscale.trends.crossover import Returns, best_whole_degrees, last_worthwhile_chip, marginal_returns
from jaxscale.trends.deployment_library import sample_deployments
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import Batch, Outcome, peak_memory, scaling_outcomes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_SAMPLES = 32
"""Samples behind the interval of the best degree [1]."""

LARGEST = 1e6
"""Most chips that a range may reach [1]."""


@dataclass(frozen=True)
class Trend:
    """Scaling of a deployment over a range of chips.

    Attributes:
        outcome: throughput, power, cost [point].
        memory: peak memory of the fullest chip, even above its capacity [point].
        returns: marginal returns [point].
        degree: fastest whole tensor-parallel degree, lower and upper end of its 90 % interval [1], [3, point].
        gain: throughput of the fastest over that of the least degree, less 1 [1], [point].
        least_return: return of a worthwhile chip, as a share of the mean return on the fewest chips [1].
        last_chip: number of chips beyond which an extra chip returns less [1].
    """

    outcome: Outcome
    memory: Memory
    returns: Returns
    degree: np.ndarray
    gain: np.ndarray
    least_return: float
    last_chip: float


def chip_range(lowest: float, highest: float) -> np.ndarray:
    """Numbers of chips, a factor of two apart, from the lowest to the highest.

    Raises:
        InputError: an empty range.
    """
    if not 1.0 <= lowest < highest <= LARGEST:
        raise InputError(f"chips from {lowest:g} to {highest:g}: expected 1 <= from < to <= {LARGEST:g}")
    n = lowest * 2.0 ** np.arange(int(np.log2(highest / lowest)) + 1)
    # The end need not be a power of two times the start.
    return n if n[-1] == highest else np.append(n, highest)


def batch_of(sequences_per_chip: float | None, global_batch_size_seqs: float | None) -> Batch:
    """Global batch as a function of n: weak scaling at sequences per chip (two by default), or strong scaling.

    Raises:
        InputError: both are given, or a number is not positive.
    """
    if sequences_per_chip is not None and global_batch_size_seqs is not None:
        raise InputError(
            "both --sequences-per-chip and --global-batch are given; expected one (weak or strong scaling)"
        )
    share = 2.0 if sequences_per_chip is None else sequences_per_chip
    value = share if global_batch_size_seqs is None else global_batch_size_seqs
    if not 0.0 < value < 1e9:
        raise InputError(f"batch = {value:g} sequences is out of range; expected a number above 0")
    return Batch(per_chip=share) if global_batch_size_seqs is None else Batch(fixed=value)


def check_layout(layout: ParallelLayout, batch: Batch, n_chips: np.ndarray) -> None:
    """Refuse a layout without room on the fewest chips, or without a sequence for every replica and microbatch.

    Raises:
        InputError: too few chips, or a replica without a sequence.
    """
    degrees = {name: float(getattr(layout, name)) for name in ("tp", "pp", "cp", "ep", "n_microbatches")}
    shards = degrees["tp"] * degrees["pp"] * degrees["cp"]
    # B tp pp cp / n, the least over the range.
    replica_batch = float(np.min(np.asarray(batch.at(n_chips)) * shards / n_chips))
    columns = {**degrees, "n_chips": n_chips[0], "replica_batch": replica_batch}
    broken = broken_rules(columns, 1, CONTINUOUS_RULES)[0]
    if broken:
        raise InputError(broken[0])


def trend(
    deployment: Deployment, layout: ParallelLayout, batch: Batch, n_chips: np.ndarray, least_return: float
) -> Trend:
    """Scaling of a deployment over a range of chips: the result of `jaxscale trends`.

    Args:
        deployment: model, chips, coefficients, power, price.
        layout: degrees.
        batch: global batch as a function of n.
        n_chips: n, ascending [point].
        least_return: return of a worthwhile chip, as a share of the mean return on the fewest chips [1].

    Raises:
        InputError: the share is not between 0 and 1.
    """
    if not 0.0 < least_return < 1.0:
        raise InputError(f"least return = {least_return:g} is out of range; expected a share between 0 and 1")
    samples = sample_deployments(deployment, N_SAMPLES)
    best = best_whole_degrees(samples, batch, n_chips, tensor_degrees(deployment))
    # Whole degrees: no interpolation.
    ends = np.quantile(best.degree, [0.05, 0.95], axis=0, method="nearest")
    points = (deployment, layout, n_chips, np.asarray(batch.at(n_chips)))
    return Trend(
        outcome=scaling_outcomes(*points),
        memory=peak_memory(*points),
        returns=marginal_returns(deployment, layout, batch, n_chips),
        degree=np.stack([best.degree[0], *ends]),  # the first sample is the deployment itself
        gain=best.gain[0],
        least_return=least_return,
        last_chip=last_worthwhile_chip(
            deployment, layout, batch, least_return, reference=float(n_chips[0]), largest=2e6
        ),
    )


def tensor_degrees(deployment: Deployment) -> np.ndarray:
    """Candidate tensor-parallel degrees: powers of two up to the scale-up domain that divide the model [1]."""
    domain = float(deployment.cluster.network.domain_size[0])
    degrees = 2.0 ** np.arange(int(np.log2(max(domain, 2.0))) + 1)
    facts = {**model_columns(deployment.model), "domain_size": domain}
    return degrees[np.broadcast_to(obeys({**facts, "tp": degrees}, about="tp"), degrees.shape)]


def document(trend: Trend) -> dict[str, Any]:
    """JSON document of a trend, in SI units."""
    outcome, returns = trend.outcome, trend.returns
    first = float(returns.average[0])
    return {
        "n_chips": outcome.n_chips,
        "global_batch_size_seqs": outcome.global_batch_size_seqs,
        "step_time_s": outcome.times.total,
        "terms_s": outcome.times.terms(),
        "tokens_per_s": outcome.tokens_per_s,
        "tokens_per_s_per_chip": outcome.tokens_per_s_per_chip,
        "mfu": outcome.mfu,
        "memory_bytes": trend.memory.allocated,
        "exposed_share": outcome.exposed_share,
        "chip_power_w": outcome.chip_power,
        "tokens_per_joule": outcome.tokens_per_joule,
        "tokens_per_chip_hour": outcome.tokens_per_chip_hour,
        "tokens_per_dollar": outcome.tokens_per_dollar,
        "marginal_tokens_per_s_per_chip": returns.per_chip,
        "marginal_tokens_per_joule": returns.per_watt,
        "marginal_tokens_per_dollar": returns.per_dollar,
        "marginal_tokens_per_joule_of_cap": returns.per_watt_of_cap,
        "return_of_last_chip": returns.per_chip / first,
        "best_tp": {"value": trend.degree[0], "lo": trend.degree[1], "hi": trend.degree[2], "gain": trend.gain},
        "least_return": trend.least_return,
        "last_worthwhile_chip": trend.last_chip,
    }


TREND_COLUMNS = (
    TableColumn("chips", says="{} chips"),
    TableColumn("tokens/s per chip", "tok/s/chip"),
    TableColumn("MFU", "MFU %", "%", stays=True),
    TableColumn("exposed", "exposed %", "%"),
    TableColumn("memory per chip", "GB", "GB"),
    TableColumn("power per chip", "W", "W"),
    TableColumn("tokens/J", "tok/J"),
    TableColumn("million tokens/$", "Mtok/$"),
    TableColumn("last chip returns", "returns %", "%"),
    TableColumn("best tp (90 %)", "best tp"),
    TableColumn("gain by best tp", "gain %", "%"),
)
"""Columns of the table of a trend."""


def trend_table(trend: Trend) -> Table:
    """Table of a trend: throughput, utilisation, memory, power, returns and best degree by number of chips."""
    o, r = trend.outcome, trend.returns
    share = np.asarray(r.per_chip / r.average[0])
    cells = (
        [f"{n:.0f}" for n in np.asarray(o.n_chips)],
        [f"{speed:.0f}" for speed in np.asarray(o.tokens_per_s_per_chip)],
        _percent(o.mfu, 1),
        _percent(o.exposed_share, 1),
        [f"{held / GB:.0f}" for held in np.asarray(trend.memory.allocated)],
        [f"{watts:.0f}" for watts in np.asarray(o.chip_power)],
        [f"{tokens:.2f}" for tokens in np.asarray(o.tokens_per_joule)],
        [f"{tokens / 1e6:.1f}" for tokens in np.asarray(o.tokens_per_dollar)],
        _percent(share, 0),
        [f"{best:.0f} ({low:.0f} to {high:.0f})" for best, low, high in trend.degree.T],
        _percent(trend.gain, 0),
    )
    return make_table("Hardware scaling", TREND_COLUMNS, zip(*cells, strict=True))


def memory_line(deployment: Deployment, trend: Trend) -> str:
    """Sentence on the numbers of chips with too little memory per chip; empty if memory suffices throughout."""
    short = np.asarray(trend.outcome.n_chips)[~np.asarray(trend.memory.fits)]
    if not len(short):
        return ""
    memory = trend.memory
    held, most, capacity = (float(np.max(size)) / GB for size in (memory.allocated, memory.total, memory.capacity))
    # The table has what a program allocates.
    need = f"{held:.0f} GB and {most - held:.1f} beside the program, of {capacity:.0f} GB each, on the fewest"
    return f"up to {short.max():.0f} chips do not have the memory ({need}); their figures are of time alone"


def _percent(shares: ArrayLike, digits: int) -> list[str]:
    return [f"{100.0 * share:.{digits}f}" for share in np.asarray(shares)]


def last_chip_line(trend: Trend) -> str:
    """Sentence on the number of chips beyond which an extra chip is not worthwhile."""
    share, first = 100 * trend.least_return, float(trend.outcome.n_chips[0])
    if not np.isfinite(trend.last_chip):
        return f"an extra chip returns more than {share:g} % of one at {first:.0f} chips throughout"
    return f"beyond {trend.last_chip:.0f} chips an extra one returns less than {share:g} % of one at {first:.0f} chips"


def trends_figure(trend: Trend) -> "Figure":
    """Figure of throughput, power, marginal returns and best degree against the number of chips."""
    o, r = trend.outcome, trend.returns
    n, first = np.asarray(o.n_chips), float(r.average[0])
    share = {"average": np.asarray(r.average) / first, "one more chip": np.asarray(r.per_chip) / first}
    watts = {"tokens per joule": np.asarray(o.tokens_per_joule) / float(o.tokens_per_joule[0])}
    watts["tokens per dollar"] = np.asarray(o.tokens_per_dollar) / float(o.tokens_per_dollar[0])
    shares = {"MFU": 100.0 * np.asarray(o.mfu), "exposed share of the step": 100.0 * np.asarray(o.exposed_share)}
    best, interval = {"fastest tp": trend.degree[0]}, {"fastest tp": (trend.degree[1], trend.degree[2])}
    parts = (
        Panel("What a chip returns", "chips", f"share of a chip's at {n[0]:.0f} chips", n, share),
        Panel("Utilisation and exposed communication", "chips", "share [%]", n, shares),
        Panel("Per joule and dollar", "chips", f"share of that at {n[0]:.0f} chips", n, watts),
        Panel("Fastest tensor-parallel degree, 90 % interval", "chips", "tp", n, best, bands=interval, whole=True),
    )
    return panels(parts)


def trends_summary(deployment: Deployment, trend: Trend, title: str) -> Report:
    """Report of a trend: table, figure, and a sentence on the last worthwhile chip.

    Args:
        deployment: model, chips, coefficients, power, price.
        trend: scaling over a range of chips.
        title: title of the report.
    """
    report = Report(title)
    report.add(trend_table(trend))
    report.sentences(filter(None, (last_chip_line(trend), memory_line(deployment, trend))))
    caption = "Throughput, utilisation, energy and money per chip, and the fastest tensor-parallel degree."
    report.figure("trends", trends_figure(trend), caption)
    return report
