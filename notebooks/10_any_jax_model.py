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
# # Any JAX model: five that nobody described by hand
#
# `js.trace` reads the jaxpr of a training step: kernels with flop and bytes, dimension classes, memory. Nothing is
# allocated and no accelerator is needed. Here: five models from their code alone, their time and memory on one H100
# beside what was measured, derivatives without tracing again, and plans whose collectives nobody wrote down.

# %%
import csv
import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import examples, report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)
h100 = js.cluster("h100-80gb", 1)
coefficients = js.prior_medians()


@functools.partial(jax.jit, static_argnums=1)
def seconds_of(sizes, tables):
    """Time of a step on one H100 [s]."""
    work = js.Workload(sizes, tables)
    return js.step_time(work, js.class_plan(work), h100, coefficients).total


def seconds(work):
    """Time of a step of a workload [s]."""
    return float(seconds_of(jnp.asarray(work.sizes, float), work.tables))


# %% [markdown]
# ## 1. Five models from their code
#
# A convolutional network, a diffusion transformer, a recommendation model, a graph network and a state-space model. All
# are plain JAX in `jaxscale.examples`; a step of your own is traced the same way.

# %%
works = {
    "ResNet-50": js.trace(*examples.resnet50(batch=256), names={"data0[0]": "batch"}),
    "DiT-XL/2": js.trace(*examples.dit(batch=64), names={"data0[0]": "batch"}),
    "DLRM-DCNv2": js.trace(*examples.dlrm(batch=6912), names={"numbers[0]": "batch"}),
    "graph network": js.trace(*examples.graph_network()),
    "Mamba-2": js.trace(*examples.mamba2()),
}
for name, work in works.items():
    columns = work.columns()
    print(
        f"{name:14} {float(work.n_weights()) / 1e6:10.1f} M weights  {float(work.flop()) / 1e12:6.2f} Tflop  "
        f"{float(columns.bytes.sum()) / 1e9:6.1f} GB moved  {float(work.peak_bytes()) / 1e9:6.1f} GB peak  "
        f"{1e3 * seconds(work):6.2f} ms"
    )

# %% [markdown]
# Closed forms agree: a ResNet-50 takes 4.089 billion multiplications for an image forward, and three times that in all,
# but for the gradient of the image.

# %%
stem = 2 * 112**2 * 147 * 64 * 256
expected = 3 * 2 * 4.089e9 * 256 - stem
print(f"{float(works['ResNet-50'].flop('conv', 'matmul')) / expected:.4f} of the closed form")
assert abs(float(works["ResNet-50"].flop("conv", "matmul")) / expected - 1) < 1e-3

# %% [markdown]
# ## 2. Beside what was measured
#
# Steps of ResNet-50 and DiT-XL in JAX on one H100. The seven coefficients of the kernels were fitted to decoders; no
# convolution and no diffusion model was seen. Other batches need no other trace: the batch is a class, and its size a
# number.

# %%
with open(js.data_path("workloads/h100_jax_workloads.csv")) as file:
    measured = [row for row in csv.DictReader(file) if "rolled" not in row["workload"]]
errors, peaks = [], []
for row in measured:
    traced = works["ResNet-50" if row["workload"] == "resnet50" else "DiT-XL/2"]
    work = traced.with_sizes({"batch": float(row["batch"])})
    errors.append(seconds(work) / float(row["step_time_s"]) - 1)
    peaks.append(float(work.peak_bytes()) / float(row["peak_mem_gb"]) / 1e9 - 1)
    print(
        f"{row['workload']:9} batch {row['batch']:>3}: time {100 * errors[-1]:+5.1f} %, peak {100 * peaks[-1]:+5.1f} %"
    )
assert np.max(np.abs(errors)) < 0.12
assert np.max(np.abs(peaks)) < 0.09

# %% [markdown]
# ## 3. Where the time goes, and what moves it
#
# The terms are those of a transformer. Sizes are floats, so that elasticities follow by `jax.grad`: a step of DiT grows
# almost as its batch, one of DLRM by less, as its kernels are launched for any batch.


# %%
def elasticity(work, name):
    """Elasticity of the step time in the size of a class [1]."""
    place = work.place_of(name)

    def log_time(log_size):
        sizes = jnp.asarray(work.sizes, float).at[place].set(jnp.exp(log_size))
        return jnp.log(seconds_of(sizes, work.tables))

    return float(jax.grad(log_time)(jnp.log(work.sizes[place])))


terms = {}
for name, work in works.items():
    step = js.step_time(work, js.class_plan(work), h100, coefficients)
    terms[name] = {term: float(seconds) for term, seconds in step.terms().items()}
figure = report.png(report.figures.step_breakdown(terms, "One step of five models on one H100"))
(folder / "workloads_breakdown.png").write_bytes(figure)
Image(figure)

# %%
for name in ("DiT-XL/2", "DLRM-DCNv2"):
    parts = ", ".join(f"{term} {1e3 * value:.2f}" for term, value in terms[name].items() if value > 1e-4)
    print(f"{name}: {parts} ms; elasticity in the batch {elasticity(works[name], 'batch'):.2f}")
assert elasticity(works["DiT-XL/2"], "batch") > 0.85 > elasticity(works["DLRM-DCNv2"], "batch")

# %% [markdown]
# ## 4. Rolled or unrolled, kept or computed again
#
# A rolled loop writes and reads stacks of what the backward pass needs; `jax.checkpoint` drops most of it for one more
# forward pass. Both can be told before anything is queued.

# %%
small = {"n_layers": 8, "micro_batch": 4}
variants = {
    "unrolled": js.trace(*examples.decoder(**small)),
    "rolled": js.trace(*examples.decoder(**small, unroll=False)),
    "computed again": js.trace(*examples.decoder(**small, recompute=True)),
}
for name, work in variants.items():
    print(f"{name:15} {1e3 * seconds(work):6.1f} ms, {float(work.peak_bytes()) / 1e9:5.1f} GB")
assert seconds(variants["rolled"]) > 1.1 * seconds(variants["unrolled"])
assert float(variants["computed again"].peak_bytes()) < 0.8 * float(variants["unrolled"].peak_bytes())

# %% [markdown]
# ## 5. Plans over classes
#
# Which axes can be split, and what that costs in collectives, follows from the program. The search finds what is done
# by hand for decoders: MLP, heads and vocabulary are split together.

# %%
decoder = js.trace(*examples.decoder(n_layers=16, d_model=4096, n_heads=32, n_kv_heads=8, d_ff=14336, gated_mlp=True))
choice = js.best_plan(decoder, js.cluster("h100-80gb", 16), 64, fit="prior", top=3)
print(choice)
assert choice.best.memory < 80e9
assert choice.infeasible > 0
