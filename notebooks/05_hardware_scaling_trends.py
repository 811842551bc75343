# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What do more chips return?
#
# Fernandez et al. (arXiv 2411.13055) measured fully sharded training (FSDP) of Llama-2 on 8 to 2,048 chips and found
# diminishing returns: throughput per chip falls by 37 % from 128 to 2,048 H100, while each still draws 94 % of its
# power. They gave no model. Here is one: the calibrated step time of this package, in which the rings of FSDP pass
# through every chip. **Only two numbers are fitted** to the paper's figures, the latencies of a hop inside a node and
# between nodes; the prediction with NCCL's own latencies, nothing fitted, stands beside.

# %%
import csv
import os
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

from jaxscale import report, trends

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)


def show(figure, name):
    (folder / name).write_bytes(report.png(figure))
    return Image(filename=str(folder / name))


# %% [markdown]
# ## The paper's figures, unfitted and fitted
#
# Coefficients come from the fit of MosaicML's table, the one that trains by PyTorch FSDP on the same chips. Its runs
# hide nearly all of what FSDP moves, so that what hides where stays at its prior. None has tensor parallelism, whose
# collectives block in PyTorch unless its compiler splits them: nothing of them hides.
# Unfitted: hop latencies from NCCL's tuner (protocol LL128), power from other publications. Fitted: the two hop
# latencies, to the fall of throughput and the gain by tensor parallelism; and the powers of memory-bound kernels and of
# exposed collectives, to the level of 658 W and the 30 W that tensor parallelism adds, with priors as wide as what is
# published of them. The fall of power and every MFU are predictions. Two assumptions fill gaps in the material at hand:
# A100 and H100 are compared on 256 chips, and the strong scaling has 32 sequences. With NCCL's latencies, prefetching
# hides the rings of 2,048 chips almost wholly. The pooled fit, in whose other tables collectives of FSDP do show,
# foretells nearly half of the fall with nothing fitted, and too little gain by tensor parallelism.

# %%
before, after = (trends.reproduce(overlay) for overlay in (trends.unfitted_overlay(), trends.fitted_overlay()))
pooled = trends.reproduce(trends.unfitted_overlay(), "default")
answers = {
    name: (value, *(found.values[name] for found in (before, after, pooled)))
    for name, (value, _) in trends.published_values().items()
}
print(f"{'':26s}{'published':>10s}{'unfitted':>10s}{'fitted':>10s}{'pooled, unfitted':>18s}")
for name, row in answers.items():
    said = [f"{value:.3f}" if abs(value) < 1 else f"{value:.0f}" for value in row]
    print(f"{name:26s}{said[0]:>10s}{said[1]:>10s}{said[2]:>10s}{said[3]:>18s}")
print(f"best tp at 128 and 2,048 chips: unfitted {before.best_degree}, fitted {after.best_degree}")
for name, overlay in (("unfitted", trends.unfitted_overlay()), ("fitted", trends.fitted_overlay())):
    inside, between = (1e6 * hop for hop in overlay.hop_latency)
    network = overlay.power["network"]
    print(f"{name}: hops of {inside:.1f} us inside and {between:.1f} us between nodes, network power {network:.2f}")

# %%
n = 2.0 ** np.arange(3, 14)
weak = trends.Batch(per_chip=2.0)
paper, prior = trends.deployment(), trends.deployment(overlay=trends.unfitted_overlay())
samples = trends.sample_deployments(paper, 48)
fitted, unfitted = (trends.weak_scaling(deployment, n, 2.0) for deployment in (paper, prior))
speeds = trends.layout_speeds(samples, weak, n)
layouts = list(trends.LAYOUTS)
few, many = np.flatnonzero((n == 128) | (n == 2048))
per_chip = np.exp(speeds[:, 0]) / n
relative = per_chip / per_chip[:, few : few + 1]
fall, power = answers["throughput_fall"][0], answers["power_fall"][0]
older = trends.weak_scaling(trends.deployment(chip_id="a100-80gb"), n, 2.0)
nodes = 2.0 ** np.arange(4, 9)
_, strong = trends.best_tensor_degree(paper, nodes, np.full(nodes.size, 32.0))
_, strong_prior = trends.best_tensor_degree(prior, nodes, np.full(nodes.size, 32.0))
chips = "chips [1]"
parts = (
    report.figures.Panel(
        "Throughput per chip, weak scaling",
        chips,
        "of that at 128 chips [1]",
        n,
        {
            "two latencies fitted": fitted.tokens_per_s_per_chip / fitted.tokens_per_s_per_chip[few],
            "unfitted": unfitted.tokens_per_s_per_chip / unfitted.tokens_per_s_per_chip[few],
        },
        bands={"two latencies fitted": tuple(np.quantile(relative, [0.05, 0.95], axis=0))},
        marks={"published": (2048, 1 + fall, 0.05)},
    ),
    report.figures.Panel(
        "Power per chip, weak scaling",
        chips,
        "mean power [W]",
        n,
        {"fitted": fitted.chip_power, "unfitted": unfitted.chip_power},
        marks={"published level": (128, 658, 0), "published fall": (2048, 658 * (1 + power), 658 * 0.02)},
    ),
    report.figures.Panel(
        "A100 and H100, same work",
        chips,
        "MFU [1]",
        n,
        {"A100, nothing fitted": older.mfu, "H100": fitted.mfu, "H100 unfitted": unfitted.mfu},
        marks={
            "published, A100": (256, answers["a100_mfu"][0], 0.04),
            "published, H100": (256, answers["h100_mfu"][0], 0.04),
        },
    ),
    report.figures.Panel(
        "Strong scaling, best tp",
        chips,
        "MFU [1]",
        nodes,
        {"fitted": strong.mfu, "unfitted": strong_prior.mfu},
        marks={"published: about": (16, 0.40, 0.04), "published: below": (256, 0.15, 0)},
    ),
)
show(report.figures.panels(parts), "trends_paper.png")

# %% [markdown]
# ## Why, and which layout overtakes which
#
# A layer's parameters travel through a ring of all chips. The bytes take the same time on 16 chips as on 16,000, the
# hops do not: from some thousand chips on they outlast the compute that prefetching hides them behind. Halving the ring
# (tp 2), or sharding within groups of 64 chips (HSDP), takes hops away. Throughput of each layout is drawn over pure
# FSDP, the best tensor-parallel degree as a continuous function of the number of chips; bands: coefficients within the
# intervals of the fit, hop latencies within theirs. Tensor and pipeline parallelism are told apart: a pipeline of two
# to four stages pays a bubble of 20 to 30 % and overtakes late. Context parallelism alone changes nothing: its ranks
# hold the same weights and stay in the ring. **Hybrid sharding, which the paper leaves out, beats tensor parallelism.**


# %%
def ring(layout):
    def gather(count):
        plan = trends.plan_at(layout, count, 2.0 * count)
        return trends.layer_gather(paper.model, plan, trends.cluster_at(paper, plan), paper.coefficients, 0.0)

    return jax.vmap(gather)(n)


gathers = {name: ring(trends.LAYOUTS[name]) for name in ("FSDP", "FSDP, tp 4", "HSDP, groups of 64")}
hops = {f"{name}: hops": np.asarray(gather.latency) * 1e3 for name, gather in gathers.items()}
bytes_alone = {"FSDP: bytes": np.asarray(gathers["FSDP"].transfer) * 1e3}
overtakes = {}
for index, name in enumerate(layouts[1:], start=1):
    where = trends.overtaking(n, speeds, 0, index)
    low, high = np.quantile(where, [0.05, 0.95], method="nearest")
    overtakes[name] = where[0]
    gain = 100 * np.expm1(speeds[0, index, many] - speeds[0, 0, many])
    print(f"{name:20s} overtakes FSDP at {where[0]:6.0f} chips, 90 % {low:.0f} to {high:.0f}; at 2,048: {gain:+.0f} %")
best = trends.best_degrees(samples, weak, n)
group = trends.best_degrees(samples, weak, n[3:], field="shard_group", bounds=(8.0, 1024.0))
low, middle, high = np.quantile(group.degree[:, many - 3], [0.05, 0.5, 0.95])
print(f"best sharding group at 2,048 chips: {middle:.0f}, 90 % {low:.0f} to {high:.0f}")
print(f"there tp* = {best.degree[0, many]:.1f} and d ln tp* / d ln n = {best.elasticity[0, many]:.2f}")
lines = {name: np.exp(speeds[0, i] - speeds[0, 0]) for i, name in enumerate(layouts) if "cp" not in name}
within = [np.quantile(found.degree, [0.05, 0.95], axis=0) for found in (best, group)]
bands = [tuple(within[0]), tuple(np.minimum(within[1], n[3:]))]
parts = (
    report.figures.Panel("One gather of a layer", chips, "time [ms]", n, {**hops, **bytes_alone}),
    report.figures.Panel("Throughput over pure FSDP", chips, "ratio [1]", n, lines, logarithmic=(True, True)),
    report.figures.Panel("Best tensor-parallel degree", chips, "tp [1]", n, {"tp*": best.degree[0]}, {"tp*": bands[0]}),
    report.figures.Panel(
        "Best sharding group",
        chips,
        "chips [1]",
        n[3:],
        {"group*": np.minimum(group.degree[0], n[3:])},
        {"group*": bands[1]},
        {},
        (True, True),
    ),
)
show(report.figures.panels(parts), "trends_crossover.png")

# %% [markdown]
# ## What one more chip, watt or dollar returns
#
# Derivatives of the model in the number of chips. An average hides how little the last chip adds: at 2,048 chips each
# gives 61 % of what it gave at 8, the last one 21 %. Power capped to 500 W costs little where chips wait.

# %%
marginal = trends.marginal_returns(paper, trends.ParallelLayout(), weak, n)
hybrid = trends.marginal_returns(paper, trends.LAYOUTS["HSDP, groups of 64"], weak, n)
last = {}
for name in ("FSDP", "FSDP, tp 4", "HSDP, groups of 64"):
    last[name] = [trends.last_worthwhile_chip(paper, trends.LAYOUTS[name], weak, share) for share in (0.9, 0.5, 0.25)]
    print(f"{name:20s} an extra chip returns less than 90, 50, 25 % from", *(f"{count:.0f}" for count in last[name]))
for count in (few, many):
    per_watt, per_dollar = float(marginal.per_watt[count]), float(marginal.per_dollar[count]) / 1e6
    average = float(marginal.totals.tokens_per_s[count] / marginal.totals.system_power[count])
    print(
        f"at {n[count]:.0f} chips one more returns {per_watt:.1f} tokens per joule of system (average {average:.1f}),"
    )
    print(f"    {per_dollar:.1f} million tokens per dollar")
capped = trends.weak_scaling(trends.deployment(power_cap=500.0), n, 2.0)
for count in (few, many):
    speed = float(capped.tokens_per_s[count] / fitted.tokens_per_s[count]) - 1
    energy = float(capped.tokens_per_joule[count] / fitted.tokens_per_joule[count]) - 1
    print(f"cap of 500 W at {n[count]:.0f} chips: speed {100 * speed:+.1f} %, tokens per joule {100 * energy:+.1f} %")
parts = (
    report.figures.Panel(
        "Throughput per chip",
        chips,
        "of a chip at 8 chips [1]",
        n,
        {
            "FSDP, average": marginal.average / marginal.average[0],
            "FSDP, one more": marginal.per_chip / marginal.average[0],
            "HSDP of 64, average": hybrid.average / hybrid.average[0],
            "HSDP of 64, one more": hybrid.per_chip / hybrid.average[0],
        },
    ),
    report.figures.Panel(
        "Tokens per dollar",
        chips,
        "[million tokens/$]",
        n,
        {
            "average": marginal.totals.tokens_per_s / marginal.totals.dollars_per_s / 1e6,
            "one more chip": marginal.per_dollar / 1e6,
        },
    ),
)
show(report.figures.panels(parts), "trends_returns.png")

# %% [markdown]
# ## Generations, and single improvements
#
# The same two sequences per chip on every generation; chips without runs in MosaicML's table (V100, B200 and later)
# have the coefficients of the pooled fit. Faster chips on the same network wait sooner: B200 and GB200 start higher in
# tokens per second and lower in MFU, and meet the ring earlier. Single improvements of the H100 cluster show what
# binds: arithmetic on 256 chips, hops on 2,048, where network bandwidth adds little.

# %%
found, memory_fits = trends.side_by_side(trends.generations(), weak, n)
names = ("V100", "A100", "H100", "B200", "GB200", "GB300")
too_small = [name for name, fits in zip(names, memory_fits, strict=True) if not fits.all()]
print("does not fit in memory without recomputation:", too_small)
for name, energy in zip(names, np.asarray(found.tokens_per_joule), strict=True):
    print(f"{name:6s} {energy[few]:5.1f} tokens per joule at 128 chips, {energy[many]:5.1f} at 2,048")
improved, _ = trends.side_by_side(trends.what_if(paper), weak, [256, 2048])
gains = np.asarray(improved.tokens_per_s_per_chip / improved.tokens_per_s_per_chip[0]) - 1
for name, (at_few, at_many) in zip(trends.CHANGES, gains, strict=True):
    print(f"{name:22s} {100 * at_few:+5.1f} % on 256 chips, {100 * at_many:+5.1f} % on 2,048")
millions = np.asarray(found.tokens_per_dollar) / 1e6
parts = (
    report.figures.Panel("Utilisation", chips, "MFU [1]", n, dict(zip(names, np.asarray(found.mfu), strict=True))),
    report.figures.Panel(
        "Money",
        chips,
        "million tokens per dollar",
        n,
        dict(zip(names, millions, strict=True)),
    ),
)
show(report.figures.panels(parts), "trends_generations.png")

# %% [markdown]
# ## Context length, model size, batch
#
# The hops of a ring do not depend on what it carries. A larger model meets them later, because the compute of a layer
# grows with the square of its width; more sequences per chip push the fall out in proportion; longer ones at the same
# number of tokens a little, as only attention grows.

# %%
workloads = {f"context {length}": (trends.deployment(seq_len=length), 8192.0 / length) for length in (1024, 4096, 8192)}
workloads |= {name: (trends.deployment(name), 2.0) for name in ("llama2-7b", "llama2-13b", "llama2-70b")}
workloads |= {f"{count} sequences per chip": (paper, float(count)) for count in (1, 2, 4, 8)}
changes = {}
for name, (deployment, share) in workloads.items():
    curve = trends.weak_scaling(deployment, [128, 512, 2048, 8192], share)
    changes[name] = np.asarray(curve.tokens_per_s_per_chip / curve.tokens_per_s_per_chip[0]) - 1
    shown = ", ".join(f"{100 * fall:+.0f} %" for fall in changes[name][1:])
    print(f"{name:22s} MFU {100 * float(curve.mfu[0]):.0f} % at 128 chips; per chip at 512, 2,048, 8,192: {shown}")

# %% [markdown]
# ## Measured scaling series
#
# Every series of at least four sizes in the tables that were made to show scaling, against the shipped fit with its
# 90 % intervals. The fit has seen these rows; the honest figure is that of cross-validation, which leaves out all runs
# of a shape and size. The Ultra-Scale sweep of plans has strong-scaling series by accident; its repeats differ by a
# tenth and more, and slopes measured on it are themselves uncertain by more than the tolerance.

# %%
series = [s for s in trends.shipped_series(tables=trends.SCALING_TABLES) if s.n_sizes >= 4]
in_sample = trends.summarise(series)
with Path("../fits/residuals.csv").open(newline="") as file:
    residual = {(row["table"], int(row["row"])): float(row["five_fold"]) for row in csv.DictReader(file)}
unseen = trends.summarise([s for s in (trends.held_out_series(s, residual) for s in series) if s is not None])
for said, result in (("shipped fit", in_sample), ("5-fold cross-validation", unseen)):
    print(f"{said}: {100 * result.within:.0f} % of {result.n} slopes within 0.02, median error {result.median:.4f}")
sweep = [s for s in trends.shipped_series(tables=["ultrascale_playbook_h100"]) if s.n_sizes >= 4]
found = trends.summarise(sweep)
own = float(np.median([s.slope_scatter() for s in sweep]))
print(
    f"Ultra-Scale sweep: {100 * found.within:.0f} % of {found.n} slopes within 0.02, median error {found.median:.3f},"
)
print(f"    median standard error of the measured slopes {own:.3f}")
drawn = [
    report.figures.ScalingSeries(
        s.table, s.n_chips, s.measured, s.predicted, s.half_width, (s.measured_slope, s.measured_slope + s.slope_error)
    )
    for s in series
]
show(report.figures.scaling_series(drawn), "trends_measured.png")

# %% [markdown]
# ## Questions that the paper leaves open
#
# - *An analytic model*: the ring through every chip, $t = (n - k)\,\alpha_{in} + (k - 1)\,\alpha_{out}$ beside the
#   bytes; two latencies, somewhat above NCCL's own, reproduce the measured fall.
# - *Strong scaling is known to fail*: it fails for another reason than weak scaling. There work per chip shrinks and
#   bandwidth binds; here work per chip stays and the hops grow.
# - *Hybrid sharding*: groups of 64 chips overtake pure FSDP near 500 chips and give at 2,048 more than the best tensor
#   parallelism; memory is the price.
# - *Tensor or pipeline parallelism*: apart, tensor parallelism gains 45 % at 2,048 chips; a pipeline of two stages
#   breaks even there, one of four overtakes only beyond.
#
# ## The figures that this notebook stands on

# %%
assert abs(after.values["throughput_fall"] + 0.3722) <= 0.05
assert abs(after.values["power_fall"] + 0.0587) <= 0.02
assert after.best_degree[0] == 1 and 2 <= after.best_degree[1] <= 4
assert 0.3 <= after.values["tensor_parallel_gain"] <= 0.7
assert abs(after.values["a100_mfu"] - 0.5967) <= 0.04 and abs(after.values["h100_mfu"] - 0.4077) <= 0.04
assert abs(after.values["strong_scaling_mfu_few"] - 0.40) <= 0.04 and after.values["strong_scaling_mfu_many"] < 0.15
assert 1 / 3 < pooled.values["throughput_fall"] / -0.3722 < 4 / 3, "pooled fit, no latency fitted"
assert after.values["power_fall"] < before.values["power_fall"] < 0, "unfitted, power falls less"
assert -0.2 < before.values["throughput_fall"] < 0, "unfitted, rings hide"
assert best.degree[0, few] < 1.5 < best.degree[0, many] <= 4, "nearest whole degrees: 1, then 2 or 4"
assert overtakes["HSDP, groups of 64"] < overtakes["FSDP, tp 4"] < overtakes["pp 4"]
assert in_sample.within >= 0.8
assert np.all(np.diff(np.asarray(marginal.per_chip)) < 0)
assert last["FSDP"][1] < last["HSDP, groups of 64"][1]
