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
# # Calibrating your own cluster: from ten measured runs to a plan
#
# You have a new cluster and a software stack that no fit has seen, and you have measured ten runs on it. How far off
# are predictions without those runs, how good do they get with them, and what does that say about the plan to use?
#
# The part of the new cluster is played by MosaicML's LLM Foundry on H100. The fit to start from knows NVIDIA's NeMo
# recipes alone, so it has seen H100 chips but no run of this framework.

# %%
import os
import tempfile
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)
start = js.load_fit("nvidia_dgxc_benchmarking")

# %% [markdown]
# ## 1. Your runs
#
# A table of runs is a CSV file. Ten of its rows are what you have measured; the others stand for what you will run
# later, and are used only to see how good the predictions were.

# %%
runs = js.read_runs(js.data_path("runs") / "mosaic_llm_foundry.csv")
on_h100 = [row for row in runs if row["gpu"] == "h100-80gb" and row["status"] == "ok" and row["precision"] != "amp_fp8"]
order = np.random.default_rng(1).permutation(len(on_h100))
header = runs.path.read_text(encoding="utf-8").splitlines()[0]
lines = runs.path.read_text(encoding="utf-8").splitlines()


def table(rows, name):
    """A table of some rows, as a file of its own."""
    path = Path(tempfile.mkdtemp()) / name
    path.write_text("\n".join([header, *(lines[row.line - 1] for row in rows)]) + "\n", encoding="utf-8")
    return js.read_runs(path)


mine = table([on_h100[index] for index in order[:10]], "my_runs.csv")
later = table([on_h100[index] for index in order[10:]], "later.csv")
print(f"{len(mine)} measured runs, {len(later)} later ones")

# %% [markdown]
# ## 2. Before any run of yours: zero-shot
#
# The start has never seen the framework. It says so: the interval is wide.

# %%
before = js.predict(later, start)
errors_before = before.errors()
print(f"zero-shot: median error {errors_before['median_ape']:.1f} %, mean {errors_before['mape']:.1f} %")
print(f"first run: {before.step_time[0]:.2f} s, interval {before.lo[0]:.2f} to {before.hi[0]:.2f} s")
print(before.notes[0])

# %% [markdown]
# ## 3. Ten runs later
#
# `js.fit` starts from the coefficients given and shrinks towards them, the more so where runs that it leaves out are
# then predicted better. On the command line: `jaxscale fit my_runs.csv --start FIT --out my_fit.toml`.
#
# The interval comes from the runs that the cross-validation left out. Ten runs in eight groups place a 90 % quantile
# only roughly: count on fewer of the later runs inside than stated, and fit again when there are more.

# %%
result = js.fit(mine, start=start, name="my-cluster")
after = js.predict(later, result.fit)
errors_after = after.errors()
print(f"with ten runs: median error {errors_after['median_ape']:.1f} %, mean {errors_after['mape']:.1f} %")
print(f"inside the 90 % interval: {100 * errors_after['coverage_90']:.0f} %")

# %%
measured = np.concatenate([before.measured, after.measured])
predicted = np.concatenate([before.step_time, after.step_time])
labels = ["before"] * len(later) + ["with ten runs"] * len(later)
image = report.png(report.figures.predicted_against_measured(measured, predicted, labels, "Runs that no fit has seen"))
(folder / "few_runs.png").write_bytes(image)
Image(image)

# %% [markdown]
# ## 4. How far to trust it
#
# The report lists every coefficient with its interval (profile likelihood), and says which ones the runs identify. Most
# rest on the start: ten runs of one kind cannot say anything about, say, expert parallelism.

# %%
identified = [name for name, entry in result.parameters.items() if entry["identified"]]
print("\n".join(result.summary().splitlines()[:5]))
print("identified by the ten runs:", ", ".join(identified))
Image(report.png(report.figures.coefficient_intervals(result)))

# %% [markdown]
# How fast the likelihood falls along each of the best known ones. Where the curve leaves the parabola, an interval from
# the standard error alone would be wrong.

# %%
Image(report.png(report.figures.profile_curves(result, most=3)))

# %% [markdown]
# Two coefficients that do the same thing to the runs at hand cannot be told apart; their correlation says so.

# %%
Image(report.png(report.figures.correlation_matrix(result)))

# %% [markdown]
# With all runs of the framework the errors can be plotted against everything that was varied. A slope or a step would
# be a cause that the model misses.

# %%
rows = later.rows
columns = {name: [row[name] for row in rows] for name in ("n_gpus", "micro_batch_size", "d_model", "seq_len")}
Image(report.png(report.figures.residuals_by_column(np.log(after.step_time / after.measured), columns)))

# %% [markdown]
# `jaxscale fit my_runs.csv --out my_fit.toml --report fit-report` writes all of these figures into one document.

# %% [markdown]
# ## 5. The plan
#
# The best plan for a 7B model on 128 of these H100s, with the coefficients of the cluster, and what binds it.

# %%
model, cluster = js.model("mpt-7b"), js.cluster("h100-80gb", 128)
levels = {"gpu": "h100-80gb", "precision": "bf16"}
choice = js.best_plan(model, cluster, 1024, fit=result.fit, levels=levels, top=3)
print(choice.summary())

# %% [markdown]
# ## 6. Does it hold?

# %%
assert errors_after["median_ape"] < 0.7 * errors_before["median_ape"]
assert errors_after["median_ape"] < 10.0
assert errors_after["coverage_90"] > 0.6
assert 1 <= len(identified) < 20
assert choice.to_json()["exhaustive_optimum"]
