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

from jaxscale.limits import closed_forms
from jaxscale.limits.report import draw, published_curve
from jaxscale.limits.scenario_library import load_scenarios
from jaxscale.limits.study import curve_sizes, study
from jaxscale.report.style import png

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
shipped = load_scenarios()
scenarios = {name: shipped[name] for name in ("default", "global-nvlink", "gtx580")}
rates = ("peak_flops", "memory_bandwidth", "memory_bytes", "link_bandwidth", "network_bandwidth")
scenarios["latency alone"] = dataclasses.replace(
    shipped["default"], **dict.fromkeys(rates, 1e30), link_latency=0.0, network_latency=0.0, pipeline_wait=1.0
)
found = study(scenarios, curve_sizes(1e24, 1e32))
for row, name in enumerate(found.names):
    falls = ", ".join(f"{key} 10^{math.log10(flop):.2f}" for key, flop in found.limits.flop(row).items())
    print(f"{name:14s} plateau {100 * found.limits.plateau[row]:.1f} %: {falls}")

# %%
shown = dataclasses.replace(found, names=found.names[:3])
(folder / "limits_curves.png").write_bytes(png(draw(shown)))
Image(filename=str(folder / "limits_curves.png"))

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
closed = float(closed_forms.log_latency_wall(alone)) / math.log(10.0)
exponent = float(closed_forms.wall_exponent(alone))
optimised = math.log10(found.limits.flop(3)["wall"])
slopes = found.limits.by_field(3)["wall"]
print(f"wall 10^{closed:.6f} in closed form, 10^{optimised:.6f} by optimised plans; exponent {exponent:.3f}")
for field in ("training_time", "reference_batch", "kernel_latency", "reference_layers"):
    print(f"{field:16s} {slopes[field]:+.6f}")

# %% [markdown]
# ## The figures that this notebook stands on

# %%
curve = published_curve()
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
