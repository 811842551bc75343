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
# # Is a second site worth having, and how should the two be joined?
#
# A site of 64 H100 is there; 64 A100 stand elsewhere, 30 ms away, behind a line of 10 Gbit/s. Training on both as if
# they were one cluster would move all gradients over that line in every step. Four ways of joining islands are compared
# here, by the days that they take to one loss, since the ways that wait least cost some loss.

# %%
import os
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import islands, laws, report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)


def show(figure, name):
    (folder / name).write_bytes(report.png(figure))
    return Image(filename=str(folder / name))


# %% [markdown]
# ## The fleet and the answer
#
# Each island gets its own fastest plan. Shares of the batch, inner steps and the set of islands follow.

# %%
stated = islands.read_fleet(js.data_path("fleets/h100_and_a100.toml"), slow_loss=0.05)
cells = [{"gpu": chip, "precision": "bf16"} for chip in stated.chips]
model = js.model("llama2-7b")
choice = islands.best_fleet_plan(model, stated.fleet, 1024, cells=cells)
for mode in choice.modes:
    days = f"{mode.days:6.2f} days ({mode.band[0]:.2f} to {mode.band[1]:.2f})"
    print(f"{mode.mode:14s} {' + '.join(mode.islands):16s} {mode.tokens_per_s:10,.0f} tokens/s {days}")

# %%
show(islands.days_figure(choice), "islands_days.png")

# %% [markdown]
# The intervals are wide, as they hold the scatter of step times of a cluster that was never measured; that part is
# common to all rows. The **order** of the modes rests on the exchange, which is known far better. Where the time of a
# round goes:

# %%
show(islands.time_figure(choice), "islands_time.png")

# %% [markdown]
# Both islands finish together: the A100s get 28 % of the sequences. Data parallelism is slow, and a pipeline over the
# link slower still, since a step has more activations than the model has parameters: a pipeline moves less exactly if
# the tokens of a step times the width are below the parameters, here below 1.6 million tokens.

# %% [markdown]
# ## Gain against the bandwidth of the link

# %%
show(islands.bandwidth_figure(choice), "islands_bandwidth.png")

# %% [markdown]
# From some hundred Gbit/s on nobody needs to think: gradients are there in time. Below, looseness buys bandwidth: H
# steps between two exchanges divide the traffic by H, and streaming hides the rest of it.

# %%
gbit = 8e-9
print(f"joining pays from {choice.sweep.break_even * gbit:.2f} Gbit/s")
print({name: round(float(value), 2) for name, value in choice.worth.items()})

# %% [markdown]
# ## What looseness costs
#
# Two papers measured the loss of replicas that train apart. The rise over one replica with the same outer momentum is
# $\rho = c\,(N/10^9)^{-g} (M - 1)^p (H/30)^h$. It looks small; tokens make it larger, as the loss law is flat there.

# %%
goal = islands.loss_goal(model)
size, best_shape_loss = goal.n_params, goal.target / goal.shape_factor
small = goal.loss.tokens(size, best_shape_loss)
for replicas, inner_steps in ((2.0, 30.0), (2.0, 100.0), (4.0, 100.0), (8.0, 500.0)):
    rise = float(goal.loose.rise(size, replicas, inner_steps))
    tokens = float(goal.loss.tokens(size, best_shape_loss / (1.0 + rise)) / small)
    print(f"M = {replicas:g}, H = {inner_steps:3g}: loss {100 * rise:.2f} % higher, {tokens:.2f} times the tokens")

# %% [markdown]
# So there is a best number of inner steps: fewer wait, more lose. Over laws of looseness drawn from their uncertainty
# its interval is

# %%
print(choice.best.inner_steps, choice.best_inner_steps)
low, high = (100 * end for end in choice.rise)
print(f"two replicas of 1e9 parameters change the loss by {low:+.2f} to {high:+.2f} % against data parallelism")

# %% [markdown]
# The sign of the last line is open: outer momentum gains about what two replicas lose, and the data do not decide.
#
# The loss law matters as well. `laws=` takes one that was fitted to measured losses; its draws, and its error beyond
# the range of its runs, then widen the intervals of days and of inner steps.

# %%
law = laws.fit_law(laws.loss_table("gadre-c4"), n_draws=50)
under = islands.best_fleet_plan(model, stated.fleet, 1024, cells=cells, laws=law)
print(
    f"{under.best.days:.2f} days ({under.best.band[0]:.2f} to {under.best.band[1]:.2f}) to a loss of {under.loss:.3f}"
)
print(under.best.mode, under.best.inner_steps, under.best_inner_steps)

# %% [markdown]
# ## A thousand fleets at once
#
# Paces, links and shares are floats, so a thousand fleets go through one `jax.vmap`, gradients included.

# %%
pace = islands.pace_of_rates(np.asarray([8e5, 3e5, 3e5]), 4096, granule=np.full(3, 16.0))
bandwidths = np.geomspace(1e6, 1e11, 1000)


def job(bandwidth):
    return islands.IslandJob(pace, islands.uniform_links(3, bandwidth, 0.03), 7e9, 32.0, 4096.0, 1024.0)


many = jax.vmap(job)(bandwidths)
speeds = np.asarray(islands.survey_fleets(many, np.asarray([100.0])))[:, :, 0] / 8e5
fastest = [islands.MODES[place] for place in speeds.argmax(axis=1)]
for place, name in enumerate(islands.MODES):
    worth_it = np.sum(speeds[:, place] > 1.0)
    print(f"{name:14s} fastest in {fastest.count(name):4d} of 1000, faster than the best island alone in {worth_it:4d}")

# %% [markdown]
# ## Sparsity and unequal smoothness
#
# Steps to a loss are $D_0 / B + D_0 / B_\mathrm{crit}$. Sparsity raises the smoothness of the loss, and with it both
# terms by one factor: it multiplies $D_0$ and leaves the critical batch alone. Looseness multiplies $D_0$ too, and
# moves the critical batch as well: replicas together take larger batches.

# %%
growth = [float(islands.loose_law().batch_growth(count)) for count in (1.0, 2.0, 4.0, 8.0)]
print([round(factor, 2) for factor in growth])

# %%
modes = {mode.mode: mode for mode in choice.modes}
assert choice.best.mode == "streaming"
assert modes["streaming"].days < modes["local-updates"].days < modes["alone"].days < modes["data-parallel"].days
assert sum(choice.best.amounts.values()) == 1024
assert 0.0 < choice.sweep.break_even * gbit < 10.0
assert 1.0 < choice.best_inner_steps[0] <= choice.best_inner_steps[1] < 1000.0
assert 1.0 < under.best_inner_steps[0] <= under.best_inner_steps[1] < 1000.0
assert under.best.band[1] / under.best.band[0] > choice.best.band[1] / choice.best.band[0]
assert np.all(np.diff(speeds, axis=0) > -1e-9) and np.all(speeds < 14.0 / 8.0 + 1e-9)
assert fastest[0] == "streaming" and growth == sorted(growth)
