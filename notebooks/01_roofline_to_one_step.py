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
# # From a roofline to one training step
#
# A chip is two numbers, a matrix multiplication is one formula, a training step is a sum of seventeen of them. This
# notebook builds up from the first to the last, and ends with what makes the sum useful: it differentiates.
#
# The coefficients here are the priors (`js.prior_medians()`): what is known before any measured run. Calibrated ones
# change the numbers, not the story.

# %%
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxscale as js
from jaxscale import report

jax.config.update("jax_enable_x64", True)
folder = Path(os.environ.get("JAXSCALE_FIGURES", "figures"))
folder.mkdir(exist_ok=True)
coefficients = js.prior_medians()

# %% [markdown]
# ## 1. A chip: the roofline
#
# A kernel that does $F$ flops on $B$ bytes takes at least $\max(F / C, B / W)$. The ratio $F/B$ at which the two are
# equal is the ridge: below it, memory is the limit. From V100 to H100 the ridge has moved to the right: the same kernel
# needs ever more flops per byte to keep a chip busy.

# %%
names = ("v100-32gb", "a100-80gb", "h100-80gb", "b200", "tpu-v5p")
chips = {name: js.chip(name) for name in names}
Image(report.png(report.figures.roofline(chips)))

# %% [markdown]
# ## 2. A layer: small matrices lose
#
# The weight matmuls of a layer reach their peak only if the matrices are large. Tensor parallelism makes them thin and
# small microbatches make them short. Here is the share of the peak that the matmuls of Llama-3 8B reach on an H100.

# %%
model = js.model("llama3-8b")
cluster = js.cluster("h100-80gb", 8)
tokens = np.geomspace(64, 65536, 60)
flops_per_token = 2.0 * model.n_layers * (js.attention_params(model) + js.mlp_params(model, model.d_ff))


def share_of_peak(n_tokens, tp):
    """Useful flops per second of the forward matmuls, over the peak of the chips that share them."""
    plan = js.Plan(tp=tp, micro_batch_size=n_tokens / model.seq_len)
    # The pace of the framework applies to all work of a layer; a backward pass takes as long as two forward ones.
    matmuls = js.step_time(model, plan, cluster, coefficients).matmul / coefficients.layer_time_factor
    return flops_per_token * n_tokens / tp / (matmuls / 3.0) / chips["h100-80gb"].peak("bf16")


# Microbatches below one sequence stand for shorter sequences: a traced plan is not checked for whole numbers.
reached = {f"tp = {tp}": jax.jit(jax.vmap(lambda n, tp=tp: share_of_peak(n, tp)))(tokens) for tp in (1, 2, 4, 8)}
Image(
    report.png(
        report.figures.curves(
            tokens,
            {name: 100.0 * np.asarray(share) for name, share in reached.items()},
            xlabel="tokens in a microbatch",
            ylabel="share of the dense 16-bit peak [%]",
            title="Matmuls of Llama-3 8B on an H100",
        )
    )
)

# %% [markdown]
# ## 3. A step: seventeen terms
#
# `js.step_time` adds up every cause of time: compute, memory traffic, communication that no compute hides, pipeline
# bubbles, host overheads. The terms add up to the total exactly.

# %%
plan = js.Plan(dp=8, zero_stage=3, micro_batch_size=1, n_microbatches=4, recompute="full")
step = js.step_time(model, plan, cluster, coefficients)
memory = js.memory(model, plan, cluster, coefficients)
for name, term in sorted(step.terms().items(), key=lambda item: -item[1]):
    if term > 0.001 * step.total:
        print(f"{name:<18}{1e3 * float(term):9.1f} ms{100 * float(term / step.total):7.1f} %")
print(f"{'total':<18}{1e3 * float(step.total):9.1f} ms")
print(f"memory {float(memory.total) / 1e9:.1f} of {float(memory.capacity) / 1e9:.0f} GB")
utilisation = float(js.model_flops_utilisation(model, plan, cluster, step.total))
print(f"model flop utilisation {100 * utilisation:.1f} % (attention counted in full)")

# %% [markdown]
# The same model and the same work per chip on more and more chips: what grows is communication.

# %%
plans = {
    "8 chips: FSDP": js.Plan(8, zero_stage=3, n_microbatches=4),
    "64 chips: FSDP": js.Plan(64, zero_stage=3, n_microbatches=4),
    "512 chips: FSDP": js.Plan(512, zero_stage=3, n_microbatches=4),
    "512 chips: FSDP in groups of 8": js.Plan(512, zero_stage=3, shard_group=8, n_microbatches=4),
    "512 chips: tp 2, ZeRO-1": js.Plan(256, 2, zero_stage=1, n_microbatches=8, sequence_parallel=True),
    "512 chips: tp 2, pp 4, ZeRO-1": js.Plan(64, 2, 4, zero_stage=1, n_microbatches=32, sequence_parallel=True),
}
steps = {
    label: js.step_time(model, plan, js.cluster("h100-80gb", plan.n_chips), coefficients)
    for label, plan in plans.items()
}
terms = {label: {name: float(term) for name, term in step.terms().items()} for label, step in steps.items()}
breakdown = report.png(report.figures.step_breakdown(terms, "Llama-3 8B on H100: one step, 32k tokens per chip"))
(folder / "step_breakdown.png").write_bytes(breakdown)
Image(breakdown)

# %% [markdown]
# ## 4. The step differentiates
#
# Every argument is a module of float leaves. One reverse pass gives the elasticity of the step time in every number of
# the chip, the network and the calibration: per cent of time for one per cent of the quantity.

# %%
plan = plans["512 chips: FSDP"]
many = js.cluster("h100-80gb", 512)


def total(chips, fitted):
    """Step time as a function of hardware and coefficients."""
    return js.step_time(model, plan, chips, fitted).total


slopes = js.elasticity(total, (many, coefficients))
ranked = dict(js.named_elasticities(slopes, ("cluster", "coefficients"))[:14])
Image(report.png(report.figures.sensitivity_bars(ranked, step_time=float(total(many, coefficients)))))

# %% [markdown]
# ## 5. And it vectorises
#
# A thousand networks are one `vmap`: the step time of plain FSDP and of FSDP in groups of eight, against the bandwidth
# between nodes.

# %%
scale = jnp.geomspace(0.05, 20.0, 1000)


def with_network(factor, plan):
    """Step time with the bandwidth between nodes multiplied by a factor."""
    levels = jnp.asarray([1.0, factor, factor])
    network = js.Network(many.network.domain_size, many.network.bandwidth * levels, many.network.latency)
    return js.step_time(model, plan, js.Cluster(many.chip, network, many.n_chips), coefficients).total


labels = ("512 chips: FSDP", "512 chips: FSDP in groups of 8")
sweep = {name: jax.jit(jax.vmap(lambda f, name=name: with_network(f, plans[name])))(scale) for name in labels}
Image(
    report.png(
        report.figures.curves(
            scale * many.network.bandwidth[1] / 1e9,
            sweep,
            xlabel="bandwidth between nodes [GB/s per chip, one direction]",
            ylabel="step time [s]",
            title="What the network is worth",
            logarithmic=(True, True),
        )
    )
)

# %% [markdown]
# ## 6. A step in time
#
# A pipeline, pass by pass: the schedule is run event by event, and ends when the closed form says so. In the schedule
# ZB-H1 gradients of weights fill part of the bubble. `timeline.save("step.json")` writes it for Perfetto.

# %%
pipeline = js.Plan(dp=2, tp=8, pp=8, n_microbatches=16, schedule="zero-bubble")
timeline = js.timeline.step_timeline("llama3-70b", pipeline, "h100-80gb")
drawn = report.png(js.timeline.timeline_figure(timeline, "One step of Llama-3 70B: ZB-H1, 8 stages, 16 microbatches"))
(folder / "step_timeline.png").write_bytes(drawn)
Image(drawn)

# %% [markdown]
# ## 7. What this notebook has shown, as assertions

# %%
ridge = {name: float(chip.peak("bf16")) / chip.hbm_bandwidth for name, chip in chips.items()}
assert 150 < ridge["a100-80gb"] < 156  # 312 Tflop/s over 2,039 GB/s
assert ridge["v100-32gb"] < ridge["a100-80gb"] < ridge["h100-80gb"]

for name in reached:
    assert np.all(np.diff(np.asarray(reached[name])) > 0), "longer microbatches never lower the efficiency"
assert float(reached["tp = 8"][-1]) < float(reached["tp = 1"][-1]), "thin matrices lose"

for step in steps.values():
    assert np.isclose(sum(float(term) for term in step.terms().values()), float(step.total), rtol=1e-12)
assert 0.25 < utilisation < 0.6

rise = 1e-4
faster = js.Chip(
    many.chip.peak_flops * (1 + rise),
    *(getattr(many.chip, n) for n in ("hbm_bytes", "hbm_bandwidth", "idle_power", "max_power")),
)
difference = np.log(
    float(total(js.Cluster(faster, many.network, 512), coefficients)) / float(total(many, coefficients))
)
assert np.isclose(difference / np.log1p(rise), float(np.sum(slopes[0].chip.peak_flops)), rtol=1e-3)

assert np.all(np.diff(np.asarray(sweep[labels[0]])) <= 0), "more bandwidth never costs time"
assert float(sweep[labels[1]][0]) < float(sweep[labels[0]][0]), "on a slow network, small sharding groups win"

pipelined = float(js.step_time("llama3-70b", pipeline, "h100-80gb").total)
assert np.isclose(timeline.makespan, pipelined, rtol=1e-6), "a timeline ends with its step"
