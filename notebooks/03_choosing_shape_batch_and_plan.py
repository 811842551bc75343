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
# # Choosing shape, batch and plan
#
# 16,384 H100 for 90 days: which model should they train, on how many tokens, in which batches, laid out how? Loss laws
# say what parameters and tokens buy, the step-time model what they cost; `js.best_design` puts them together and
# finds width, depth, batch and plan at once, by gradient, then in whole numbers.

# %%
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)
DAY = 86400.0

# %% [markdown]
# ## 1. The best design
#
# The KKT residual certifies the continuous optimum. The integer gap says what whole numbers cost: layers that divide
# by the stages, heads by the tensor-parallel ranks, widths in tiles of 128.

# %%
levels = {"gpu": "h100-80gb", "precision": "bf16"}
cluster = js.cluster("h100-80gb", 16384)
choice = js.best_design(cluster, js.Budget(days=90), levels=levels)
print(choice.summary())

# %% [markdown]
# ## 2. Width and depth
#
# Step time of one batch over width and depth under the chosen plan. The path joins the optima of shorter and longer
# runs on the same cluster; the dashed line holds all shapes of as many parameters as the 90-day model. Shallow and
# wide would be faster, and the loss law's penalty on the aspect ratio is what holds the design back.

# %%
days = np.asarray([30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 150.0, 180.0])
front = js.designs.pareto_front(choice.relaxed, choice.goals, "time", DAY * days)
path = np.asarray([(float(design.model.d_model), float(design.model.n_layers)) for design in front.designs])
best, plan = choice.rounded.model, choice.rounded.plan
fitted = js.load_fit().coefficients(levels)
widths, depths = np.geomspace(6144, 40960, 40), np.geomspace(48, 320, 40)


@jax.jit
def seconds(width, depth):
    return js.step_time(js.designs.stretched(best, width, depth), plan, cluster, fitted, 0.02).total


times = jax.vmap(lambda depth: jax.vmap(lambda width: seconds(width, depth))(jnp.asarray(widths)))(jnp.asarray(depths))
per_layer = float(js.n_params(best) / best.n_layers / best.d_model**2)
same = np.stack([widths, float(js.n_params(best)) / (per_layer * widths**2)], axis=1)
marks = {"90 days, whole numbers": (best.d_model, best.n_layers)}
title, optima = "Step time over width and depth; optima of 30 to 180 days", "optima of 30 to 180 days"
figure = report.figures.shape_map(
    widths, depths, times, curve=same, path=path, marks=marks, path_label=optima, title=title
)
(folder / "choosing_shape_map.png").write_bytes(report.png(figure))
Image(report.png(figure))

# %% [markdown]
# ## 3. The batch
#
# Days that the chosen model needs for its loss, against the batch. Small batches leave the cluster idle between
# steps; batches beyond the critical size need more tokens. With a tenth or ten times the critical batch of the law the
# optimum moves: this number is the least certain of all.

# %%
laws = js.designs.default_laws()
small_batch_tokens = float(jnp.exp(choice.rounded.values[5])) / (1.0 + float(jnp.exp(choice.rounded.values[7])))
microbatches = np.geomspace(1.0, 1024.0, 61)


def days_to_loss(n_microbatches, coefficient):
    changed = eqx.tree_at(lambda p: p.n_microbatches, plan, n_microbatches)
    rule = eqx.tree_at(lambda r: r.batch.coefficient, laws, coefficient)
    run = js.designs.run_figures(
        best,
        best,
        rule,
        small_batch_tokens=small_batch_tokens,
        batch_tokens=changed.global_batch_size_seqs * best.seq_len,
        step_seconds=js.step_time(best, changed, cluster, fitted, 0.02).total,
        n_chips=cluster.n_chips,
    )
    return run.seconds / DAY


curve = jax.jit(jax.vmap(days_to_loss, in_axes=(0, None)))
batches = microbatches * plan.micro_batch_size * plan.dp * best.seq_len
lines = {
    f"critical batch {label}": np.asarray(curve(jnp.asarray(microbatches), factor * laws.batch.coefficient))
    for label, factor in (("as Bergsma's law", 1.0), ("a tenth", 0.1), ("ten times", 10.0))
}
lines = {label: np.where(values < 400, values, np.nan) for label, values in lines.items()}
figure = report.figures.curves(
    batches / 1e6, lines, xlabel="batch [million tokens]", ylabel="time to the loss [day]", title="Time to the loss"
)
(folder / "choosing_batch.png").write_bytes(report.png(figure))
Image(report.png(figure))

# %% [markdown]
# ## 4. Loss against time
#
# Every point is a re-optimised design, started from its neighbour. The slope in logarithms is the shadow price of the
# time limit.

# %%
reducible = front.quantities["excess_loss"]
figure = report.figures.curves(
    days,
    {"best design": reducible},
    xlabel="time on 16,384 H100 [day]",
    ylabel="reducible loss [nat per token]",
    title="The least loss in a time",
)
for when, loss, price, params in zip(days, reducible, front.prices, front.quantities["params"], strict=True):
    print(f"{when:4.0f} days: {params / 1e9:5.0f} billion parameters, reducible loss {loss:.4f}, price {price:+.3f}")
Image(report.png(figure))

# %% [markdown]
# ## 5. Shadow prices
#
# Per cent of reducible loss for one per cent more of each resource, everything else chosen anew.

# %%
prices = {name.removeprefix("bound_on_"): price for name, price in choice.prices.items()}
figure = report.figures.sensitivity_bars(
    prices, title="What one per cent more buys", answer="reducible loss", words=("better", "worse")
)
(folder / "choosing_prices.png").write_bytes(report.png(figure))
Image(report.png(figure))

# %% [markdown]
# ## 6. Published runs
#
# The same cluster, model and batch as published, and the plan left to choose. `error` is predicted over published step
# time of the published plan; `saves` is what the chosen plan takes off that prediction. Part of every saving is
# hindsight: sequence parallelism and selective recomputation came later than some of these runs, and the choice may
# stretch tensor parallelism over nodes where its authors stayed inside one. A negative saving means that the published
# plan is not among those searched: by this model it does not fit in memory, or its chunks are uneven (126 layers do not
# divide by 16 stages).

# %%
comparisons = [js.plans.compare_design(name) for name in js.plans.published_designs()]
for found in comparisons:
    print(f"{found.name}: published {found.measured:.1f} s, error {found.error:+.1%}, choice saves {found.gain:.1%}")
    print(f"    published plan: {found.memory / 1e9:.0f} GB of {found.choice.memory_limit / 1e9:.0f} GB allowed")
    print("   ", ", ".join(f"{name} {before} -> {after}" for name, (before, after) in found.differences.items()))

# %% [markdown]
# ## The figures that this notebook stands on

# %%
assert choice.relaxed.converged
assert abs(choice.gap) < 0.1
assert js.violations(best, plan, 16384) == []
assert front.residuals.max() < 1e-6
assert np.all(np.diff(reducible) < 0) and np.all(front.prices < 0)
assert np.all(np.diff(path[:, 0]) > 0)
optima = [int(np.nanargmin(values)) for values in lines.values()]
assert optima[1] <= optima[0] < optima[2]
# More chips cannot hurt, nor faster ones.
assert choice.prices["n_chips"] < 0 and choice.prices["peak_flops"] < 0
assert all(found.choice.best.memory <= found.choice.memory_limit for found in comparisons)
