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
# # Serving: prefill, decode and the price of a lifetime
#
# The transformer and the cluster of training, asked another question: how long does a token take, how many come out of
# a chip, and which model is cheapest over its life? Here: where the time of a step goes, latency against load, measured
# runs, the frontier of throughput against latency, and the cheapest model for training and serving together.

# %%
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import laws, report, serving

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)

# %% [markdown]
# ## 1. Where the time of a step goes
#
# One decode step of Llama 3 70B on four H100: with one sequence it reads weights and waits for launches; with many, the
# cache and the matmuls take over.

# %%
model, cluster = js.model("llama3-70b"), js.cluster("h100-80gb", 4)
engine = serving.Engine(tp=4, precision="fp8")
fit = serving.load_serving_fit()
levels = serving.stack_levels("vllm", "h100-80gb", model)
stack = fit.coefficients(**levels)
step = jax.jit(lambda n: serving.decode_pass(model, engine, cluster, stack, n_sequences=n, context=2000.0))
for batch in (1.0, 32.0, 256.0):
    terms = step(batch)
    parts = {name: float(getattr(terms, name)) for name in ("weights", "attention", "collectives", "floors")}
    ms = 1e3 * stack.pace
    print(f"batch {batch:3.0f}: {ms * float(terms.total):5.1f} ms,", {k: f"{ms * v:.1f}" for k, v in parts.items()})

# %% [markdown]
# ## 2. Latency against load
#
# Requests of 1,000 tokens in and 500 out. Where more are sent than memory holds, the time per token stays and the time
# to the first token explodes: requests wait.


# %%
def answers(concurrency):
    load = serving.Requests(concurrency=concurrency, input_len=1000.0, output_len=500.0)
    return serving.serving_time(model, engine, cluster, load, stack)


loads = np.geomspace(1.0, 3000.0, 40)
times = jax.jit(jax.vmap(answers))(loads)
room = float(times.max_batch[0])
figure = serving.latency_against_load(loads, times, np.asarray(times.throughput) / 4.0)
report.write_whole(folder / "serving_latency.png", report.png(figure))
print(f"memory holds {room:.0f} requests")
Image(folder / "serving_latency.png")

# %% [markdown]
# ## 3. Measured runs
#
# The 22 runs of NVIDIA on which arXiv 2407.14645 validates. `fits/serving.md` has the errors of what was left out.

# %%
runs = serving.read_serving(js.data_path("serving/nvidia_nemo_llama2.csv"))
errors = serving.predict_serving(runs).errors(runs)["e2e_latency_s"]
print(f"{errors['n']} runs, median error {errors['median_ape']:.1f} %, 90 % within {errors['p90_ape']:.0f} %")

# %% [markdown]
# ## 4. Throughput against latency
#
# Degrees, copies, format and batch on eight H100 that answer most per chip, under a limit on the time per token.

# %%
space = serving.ServingSpace(precisions=("bf16", "fp8"))
choice = serving.best_serving_plan(
    model, js.cluster("h100-80gb", 8), 1000, 500, tpot_limit=0.04, levels=levels, space=space
)
print({name: round(value, 3) if isinstance(value, float) else value for name, value in choice.best.to_json().items()})
figure = serving.serving_frontier(choice, tpot_limit=0.04)
report.write_whole(folder / "serving_frontier.png", report.png(figure))
Image(folder / "serving_frontier.png")

# %% [markdown]
# ## 5. The price of a lifetime
#
# A model that answers much should be smaller and trained longer: the quality of a compute-optimal 13B model, over the
# tokens that it serves (Sardana et al., arXiv 2401.00448).

# %%
law = laws.LossLaw(1.69, 406.4, 410.7, 0.336, 0.283)
flop = jnp.logspace(20, 26, 20001)
loss = law.loss(13e9, jnp.interp(13e9, *law.optimum(flop)))
for served in (0.0, 2e11, 2e12, 2e13):
    best = serving.lifetime_optimum(law, loss, serving.LifetimeLoad(0.0, served))
    print(
        f"{served:.0e} tokens served: {float(best.n_params) / 1e9:5.2f}B on {float(best.n_tokens) / 1e12:.2f}T tokens"
    )
best = serving.lifetime_optimum(law, loss, serving.LifetimeLoad(0.0, 2e12))

# %%
assert float(times.tpot[-1]) < 1.01 * float(times.tpot[np.searchsorted(loads, room)])
assert float(times.ttft[-1]) > 10 * float(times.ttft[0])
rate = times.throughput / 500.0
assert np.allclose(rate * (times.ttft - times.waiting + 499 * times.tpot), times.n_sequences)
assert errors["median_ape"] < 5.0
assert choice.best.tpot <= 0.04 and np.all(np.diff(choice.frontier, axis=0) > 0)
assert abs(float(best.n_params) / 6.97e9 - 1) < 0.01 and abs(float(best.n_tokens) / 1.25e12 - 1) < 0.01
