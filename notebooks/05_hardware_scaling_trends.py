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
# through every chip. **No time is fitted** to the paper's figures: they are what `jaxscale predict` says of rows that
# name the model, the chip, the framework `pytorch-fsdp`, degrees and batch.

# %%
import csv
import os
from pathlib import Path

import equinox as eqx
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
# ## The paper's figures
#
# Coefficients are those of the default calibration for software that it never saw; its latencies come from collectives
# that were timed alone. PyTorch's default exposes the collectives of tensor parallelism and repeats norms on every
# rank. Fitted to the paper are two powers, of memory-bound kernels and of exposed collectives, to its three figures of
# power, with priors as wide as what is published of such activities. Two assumptions fill gaps in the material at hand:
# A100 and H100 are compared on 256 chips, and the strong scaling has 32 sequences. MFU on H100 comes out a tenth too
# high. Tensor parallelism gains less than in the paper; with sequence parallelism and overlapped collectives, which the
# paper's plans may have had, it gains about as much.

# %%
paper = trends.deployment()
reproduced = trends.reproduce()
answers = {name: (value, reproduced.values[name]) for name, (value, _) in trends.published_values().items()}
print(f"{'':26s}{'published':>10s}{'model':>10s}")
for name, row in answers.items():
    shown = [f"{value:.3f}" if abs(value) < 1 else f"{value:.0f}" for value in row]
    print(f"{name:26s}{shown[0]:>10s}{shown[1]:>10s}")
print(f"best tp at 128 and 2,048 chips: {reproduced.best_degree}")
scales = paper.coefficients.link_latency_scale, paper.coefficients.network_latency_scale
inside, between = (1e6 * float(t * k) for t, k in zip(paper.cluster.network.latency[:2], scales, strict=True))
print(f"hops of {inside:.1f} us inside and {between:.1f} us between nodes, powers {trends.fitted_power()}")
overlapping = {"sequence_parallel": 1.0, "vocab_parallel_loss": 1.0, "tp_overlap_full": 1.0}
overlapped = eqx.tree_at(
    lambda d: [getattr(d.software, name) for name in overlapping], paper, list(overlapping.values())
)
pure, best_overlapped = (
    trends.weak_scaling(overlapped, [2048], 2.0, trends.ParallelLayout(tp=tp)).tokens_per_s[0] for tp in (1, 4)
)
gain_overlapped = float(best_overlapped / pure) - 1
print(f"gain of tp 4 at 2,048 chips where its collectives overlap: {gain_overlapped:.2f}")

# %%
n = 2.0 ** np.arange(3, 14)
weak = trends.Batch(per_chip=2.0)
samples = trends.sample_deployments(paper, 48)
curve = trends.weak_scaling(paper, n, 2.0)
speeds = trends.layout_speeds(samples, weak, n)
layouts = list(trends.LAYOUTS)
few, many = np.flatnonzero((n == 128) | (n == 2048))
per_chip = np.exp(speeds[:, 0]) / n
relative = per_chip / per_chip[:, few : few + 1]
fall, power = answers["throughput_fall"][0], answers["power_fall"][0]
older = trends.weak_scaling(trends.deployment(chip_id="a100-80gb"), n, 2.0)
nodes = 2.0 ** np.arange(4, 9)
_, strong = trends.best_tensor_degree(paper, nodes, np.full(nodes.size, 32.0))
chips = "chips"
parts = (
    report.figures.Panel(
        "Throughput per chip, weak scaling",
        chips,
        "share of that at 128 chips",
        n,
        {"predicted": curve.tokens_per_s_per_chip / curve.tokens_per_s_per_chip[few]},
        bands={"predicted": tuple(np.quantile(relative, [0.05, 0.95], axis=0))},
        marks={"published": (2048, 1 + fall, 0.05)},
    ),
    report.figures.Panel(
        "Power per chip, weak scaling",
        chips,
        "mean power [W]",
        n,
        {"two powers fitted": curve.chip_power},
        marks={"published level": (128, 658, 0), "published fall": (2048, 658 * (1 + power), 658 * 0.02)},
    ),
    report.figures.Panel(
        "A100 and H100, same work",
        chips,
        "MFU [%]",
        n,
        {"A100": 100.0 * older.mfu, "H100": 100.0 * curve.mfu},
        marks={
            "published, A100": (256, 100 * answers["a100_mfu"][0], 4),
            "published, H100": (256, 100 * answers["h100_mfu"][0], 4),
        },
    ),
    report.figures.Panel(
        "Strong scaling, best tp",
        chips,
        "MFU [%]",
        nodes,
        {"predicted": 100.0 * strong.mfu},
        marks={"published: about": (16, 40, 4), "published: below": (256, 15, 0)},
    ),
)
show(report.figures.panels(parts), "trends_paper.png")

# %% [markdown]
# ## Why, and which layout overtakes which
#
# A layer's parameters travel through a ring of all chips. The bytes take the same time on 16 chips as on 16,000, the
# hops do not: from some thousand chips on they outlast the compute that prefetching hides them behind. Halving the ring
# (tp 2), or sharding within groups of 64 chips (HSDP), takes hops away. Throughput of each layout is drawn over pure
# FSDP, beside the fastest tensor-parallel degree and sharding group; bands: coefficients, latencies among them, as
# uncertain as those of software that the calibration never saw. Tensor and pipeline parallelism are told
# apart: a pipeline of two to four stages pays a bubble of 20 to 30 % and overtakes as late as tp 4. Context parallelism
# alone changes nothing: its ranks hold the same weights and stay in the ring. **Hybrid sharding, which the paper leaves
# out, beats tensor parallelism.**


# %%
def ring(layout):
    def gather(count):
        plan = trends.plan_at(paper.software, layout, count, 2.0 * count)
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
best = trends.best_whole_degrees(samples, weak, n, [1, 2, 4, 8])
group = trends.best_whole_degrees(samples, weak, n[3:], [8, 16, 32, 64, 128, 256, 512, 1024], field="shard_group")
low, high = np.quantile(group.degree[:, many - 3], [0.05, 0.95], method="nearest")
print(f"best sharding group at 2,048 chips: {group.degree[0, many - 3]:.0f}, 90 % {low:.0f} to {high:.0f}")
slope = trends.best_degrees(samples, weak, n).elasticity[0, many]
print(f"there the best tp is {best.degree[0, many]:.0f}; between whole degrees d ln tp* / d ln n = {slope:.2f}")
lines = {name: np.exp(speeds[0, i] - speeds[0, 0]) for i, name in enumerate(layouts) if "cp" not in name}
bands = [tuple(np.quantile(one.degree, [0.05, 0.95], axis=0, method="nearest")) for one in (best, group)]
parts = (
    report.figures.Panel("One gather of a layer", chips, "time [ms]", n, {**hops, **bytes_alone}),
    report.figures.Panel("Throughput over pure FSDP", chips, "ratio", n, lines, logarithmic=(True, True)),
    report.figures.Panel(
        "Fastest tensor-parallel degree", chips, "tp", n, {"tp": best.degree[0]}, {"tp": bands[0]}, whole=True
    ),
    report.figures.Panel(
        "Best sharding group",
        chips,
        "chips of a group",
        n[3:],
        {"group": group.degree[0]},
        {"group": bands[1]},
        whole=True,
    ),
)
show(report.figures.panels(parts), "trends_crossover.png")

# %% [markdown]
# ## What one more chip, watt or dollar returns
#
# Derivatives of the model in the number of chips. An average hides how little the last chip adds: at 2,048 chips each
# gives about two thirds of what it gave at 8, the last one about 30 %. Power capped to 500 W costs little where chips
# wait.

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
    speed = float(capped.tokens_per_s[count] / curve.tokens_per_s[count]) - 1
    energy = float(capped.tokens_per_joule[count] / curve.tokens_per_joule[count]) - 1
    print(f"cap of 500 W at {n[count]:.0f} chips: speed {100 * speed:+.1f} %, tokens per joule {100 * energy:+.1f} %")
parts = (
    report.figures.Panel(
        "Throughput per chip",
        chips,
        "share of a chip's at 8 chips",
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
        "million tokens per dollar",
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
# The same two sequences per chip on every generation. Faster chips on the same network wait sooner: B200 and GB200
# start higher in tokens per second and lower in MFU, and meet the ring earlier. Single improvements of the H100 cluster
# show what binds: arithmetic on 256 chips, latency on 2,048, where network bandwidth adds little.

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
    report.figures.Panel(
        "Utilisation", chips, "MFU [%]", n, dict(zip(names, 100 * np.asarray(found.mfu), strict=True))
    ),
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
#   bytes; latencies measured on collectives alone foretell most of the measured fall, with nothing fitted to it.
# - *Strong scaling is known to fail*: it fails for another reason than weak scaling. There work per chip shrinks and
#   bandwidth binds; here work per chip stays and the hops grow.
# - *Hybrid sharding*: groups of 64 chips overtake pure FSDP near 500 chips and give at 2,048 more than the best tensor
#   parallelism; memory is the price.
# - *Tensor or pipeline parallelism*: apart, and by PyTorch's defaults, tp 2 and a pipeline of two stages gain about as
#   much at 2,048 chips, tp 4 and four stages less.
#
# ## The figures that this notebook stands on

# %%
model = reproduced.values
assert abs(model["throughput_fall"] + 0.37) <= 0.055, "five sixths of the fall, with nothing fitted to it"
assert abs(model["power_fall"] + 0.0587) <= 0.02 and abs(model["power_level"] - 658) <= 6.6
assert reproduced.best_degree[0] == 1 and 2 <= reproduced.best_degree[1] <= 4
assert 0 < model["tensor_parallel_gain"] < 0.3 <= gain_overlapped <= 0.7, "its collectives are exposed by default"
assert abs(model["a100_mfu"] - 0.5967) <= 0.04
assert 1 < model["h100_mfu"] / 0.4077 < 1.2 and 1 < model["strong_scaling_mfu_few"] / 0.40 < 1.25, "a tenth too high"
assert model["strong_scaling_mfu_many"] < 0.15
assert best.degree[0, few] == 1 and best.degree[0, many] in (2, 4)
assert overtakes["HSDP, groups of 64"] < overtakes["FSDP, tp 4"] < overtakes["pp 4"]
assert in_sample.within >= 0.8
assert np.all(np.diff(np.asarray(marginal.per_chip)) < 0)
assert last["FSDP"][1] < last["HSDP, groups of 64"][1]
