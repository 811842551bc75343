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
# # How far can training scale?
#
# A run of three months needs ever more chips as models grow, each with ever less work between two messages. Erdil and
# Schneider-Joseph (arXiv 2411.01137) ask where this ends: utilisation falls once **data movement** takes longer than
# arithmetic, and at the **latency wall** no plan ends the run in time. Here: the curve for three scenarios, where it
# falls, which assumption moves the wall by how much, and the wall in closed form.

# %%
import dataclasses
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

from jaxscale import limits, report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)

# %% [markdown]
# ## Three scenarios, and one in which latency acts alone
#
# For every training compute the plan (tensor, expert, data and pipeline parallelism, microbatches, interleaving) is
# optimised anew, over degrees that need not be whole numbers. `default` is the H100 of the paper, `global-nvlink`
# joins all chips in one domain, `gtx580` is a chip of 2012. The fourth has rates without bounds, and only the latency
# of kernels.

# %%
shipped = limits.load_scenarios()
scenarios = {name: shipped[name] for name in ("default", "global-nvlink", "gtx580")}
rates = ("peak_flops", "memory_bandwidth", "memory_bytes", "link_bandwidth", "network_bandwidth")
scenarios["latency alone"] = dataclasses.replace(
    shipped["default"], **dict.fromkeys(rates, 1e30), link_latency=0.0, network_latency=0.0, pipeline_wait=1.0
)
found = limits.study(scenarios, limits.curve_sizes(1e24, 1e32))
for row, name in enumerate(found.names):
    falls = ", ".join(f"{key} 10^{math.log10(flop):.2f}" for key, flop in found.limits.flop(row).items())
    print(f"{name:14s} plateau {100 * found.limits.plateau[row]:.1f} %: {falls}")

# %%
curves = dict(zip(found.names[:3], found.utilisation, strict=False))
bands = {name: limits.band(found.training_flop, scenarios[name]) for name in curves}
(folder / "limits_curves.png").write_bytes(report.png(limits.curve_figure(found.training_flop, curves, bands)))
Image(filename=str(folder / "limits_curves.png"))

# %% [markdown]
# Shaded: 90 % of the curves for assumptions drawn from the uncertainties that `data/limits.toml` states, of batch,
# latencies, bandwidths and depth, each with its own best plans.

# %% [markdown]
# ## What moves the wall
#
# One reverse pass gives the elasticity of each threshold to every assumption: per cent more training compute for a per
# cent more of each, with the plan chosen anew. In other units of time nothing changes, so the elasticities of times
# and latencies add up to those of rates.

# %%
wall, linear = (found.limits.by_field(0)[name] for name in ("wall", "end_of_linear"))
for field in sorted(wall, key=lambda name: -abs(wall[name]))[:12]:
    print(f"{field:22s} wall {wall[field]:+.2f}   end of linear {linear[field]:+.2f}")
latencies = ("link_latency", "network_latency", "kernel_latency")
of_times = wall["training_time"] + sum(wall[name] for name in latencies)
of_rates = sum(wall[name] for name in rates if name != "memory_bytes")
print(f"times {of_times:.6f}, rates {of_rates:.6f}")

# %% [markdown]
# ## The wall in closed form
#
# If only the latency $\tau$ of kernels counts, a batch takes at least $4 \tau L$: two matmuls of a layer forward, two
# backward. With $B \propto T^{\beta}$ and $L \propto N^{\lambda}$ the wall is a power law, and with the default laws
# it moves with the square of run length and batch, and inversely with the square of latency and depth.

# %%
alone = jax.tree.map(jnp.asarray, scenarios["latency alone"])
closed = float(limits.log_latency_wall(alone)) / math.log(10.0)
exponent = float(limits.wall_exponent(alone))
optimised = math.log10(found.limits.flop(3)["wall"])
slopes = found.limits.by_field(3)["wall"]
print(f"wall 10^{closed:.6f} in closed form, 10^{optimised:.6f} by optimised plans; exponent {exponent:.3f}")
for field in ("training_time", "reference_batch", "kernel_latency", "reference_layers"):
    print(f"{field:16s} {slopes[field]:+.6f}")

# %% [markdown]
# ## What it buys to choose batch, depth and plan together
#
# The curves above hold batch and depth to scaling laws. Both can be chosen anew at each training compute, for a price
# in tokens: a batch of x times the critical one takes $(1 + x)/2$ times the tokens (McCandlish et al.), another ratio
# of width to depth those that Kaplan et al. measured. What counts is the chip time to the same loss. The fixed laws pay
# for large batches where nothing asks for them: small runs save half of the tokens, and with them of the chip time, at
# about the same utilisation. In between little is to be had; at the wall larger batches and fewer, wider layers buy
# time, at the price of ever more tokens, and move it by about half a decade.

# %%
joint = limits.joint_optimum(np.geomspace(1e25, 1e33, 17), scenarios["default"])
for index in range(0, 17, 2):
    flop, chosen, fixed = joint.training_flop[index], joint.utilisation[index], joint.fixed[index]
    factors = f"batch x {joint.batch_factor[index]:5.2f}, depth x {joint.depth_factor[index]:4.2f}"
    print(f"10^{math.log10(flop):.0f}: {100 * chosen:4.1f} % against {100 * fixed:4.1f} %; {factors}, "
          f"tokens x {joint.extra_tokens[index]:5.2f}, chip time x {joint.chip_time[index]:4.2f}")  # fmt: skip
farthest = [math.log10(joint.training_flop[curve > 0.0][-1]) for curve in (joint.fixed, joint.utilisation)]
print(f"largest run in time: 10^{farthest[0]:.1f} by fixed laws, 10^{farthest[1]:.1f} by joint choice")

# %%
together = {"fixed laws": 100.0 * joint.fixed, "batch, depth and plan chosen": 100.0 * joint.utilisation}
saved = {"chip time": joint.chip_time}
compute, peak = "training compute [flop]", "utilisation of the 8-bit peak [%]"
parts = [
    report.figures.Panel("Fixed laws and joint choice", compute, peak, joint.training_flop, together),
    report.figures.Panel(
        "Chip time to the same loss", compute, "share of that by the fixed laws", joint.training_flop, saved
    ),
]
(folder / "limits_joint.png").write_bytes(report.png(report.figures.panels(parts)))
Image(filename=str(folder / "limits_joint.png"))

# %% [markdown]
# ## A whole transformer on real chips
#
# The blocks above know neither attention nor vocabulary, nor the efficiencies that real software reaches. The
# calibrated step time does: at each training compute a transformer by the same laws of depth and batch, with every plan
# of whole degrees, on a number of chips that ends the run in three months. Batches come in sequences of 8192 tokens
# here and tensor parallelism is one-dimensional, so a batch of a few million tokens splits into some hundred replicas
# only. **The scenario's law of the batch and its deadline make this end**: 3.8 million tokens at 2e25 flop, as
# flop^(1/6), within 90 days. Llama 3 405B ran 3.8e25 flop on 16,384 H100 at 38 to 41 %, in batches of up to 16 million
# tokens; with batches ten times the law's the curve passes there too. Small steps are left where a degree doubles.
# Numbers of chips beyond those of measured runs, and what they cost in the fitted terms, are extrapolated.

# %%
sizes = np.geomspace(1e23, 1e27, 9)
large = dataclasses.replace(shipped["default"], batch_multiplier=10.0)
transformers = {
    "H100": limits.transformer_curve(sizes, "h100-80gb"),
    "B200": limits.transformer_curve(sizes, "b200"),
    "A100": limits.transformer_curve(sizes, "a100-80gb"),
    "H100, batches ten times as large": limits.transformer_curve(sizes, "h100-80gb", large),
}
for name, one in transformers.items():
    last = np.flatnonzero(one.utilisation)[-1]
    tp, pp, dp = one.degrees[last]
    print(f"{name}: {100 * one.utilisation.max():.0f} % at best; last in time 10^{math.log10(sizes[last]):.1f} on "
          f"{one.chips[last]:,.0f} chips (tp {tp:.0f}, pp {pp:.0f}, dp {dp:.0f})")  # fmt: skip

# %%
shares = {name: one.utilisation for name, one in transformers.items()}
(folder / "limits_transformer.png").write_bytes(
    report.png(
        limits.curve_figure(
            sizes, shares, published=False, title="Whole transformers on real chips", peak="dense 16-bit peak"
        )
    )
)
Image(filename=str(folder / "limits_transformer.png"))

# %% [markdown]
# ## The figures that this notebook stands on

# %%
curve = limits.published_curve()
inside = (found.training_flop >= 1e25) & (found.training_flop <= 10**31.7)
published = np.interp(np.log(found.training_flop[inside]), np.log(curve[:, 0]), curve[:, 1])
rms = float(np.sqrt(np.mean((found.utilisation[0][inside] - published) ** 2)))
logs = [{key: math.log10(flop) for key, flop in found.limits.flop(row).items()} for row in range(3)]
print(f"distance from the published curve {100 * rms:.2f} points")
assert rms < 0.02
assert abs(found.limits.plateau[0] - 0.698) < 0.01
assert 28.3 <= logs[0]["end_of_linear"] <= 29.0
assert abs(logs[0]["tenth"] - 31.3) < 0.2 and abs(logs[0]["wall"] - 31.7) < 0.25
assert abs(logs[1]["end_of_linear"] - 30.0) < 0.4
assert logs[2]["end_of_linear"] > 26.0
assert found.certified[0].all()
assert abs(of_times - of_rates) < 1e-5
assert abs(optimised - closed) < 1e-6
assert abs(slopes["training_time"] - exponent) < 1e-5 and abs(slopes["kernel_latency"] + exponent) < 1e-5
assert all(low[10] <= curves[name][10] <= high[10] for name, (low, high) in bands.items())
in_time = joint.fixed > 0.0
assert (joint.chip_time[in_time] <= 1.0).all() and joint.chip_time[0] < 0.6 and farthest[1] > farthest[0]
assert (joint.utilisation <= 0.7).all(), "what kernels reach"
assert transformers["H100"].utilisation.max() < found.limits.plateau[0]
assert (transformers["H100, batches ten times as large"].utilisation >= transformers["H100"].utilisation - 1e-9).all()
