"""The account of a transformer's memory against the trace of the same step, whose peak is that of XLA within 0.5 %."""

import dataclasses
import statistics

import jax.numpy as jnp
import pytest

import jaxscale as js
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.memory import memory
from jaxscale.examples.decoder_steps import decoder
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan_questions import framework_space

WIDTHS = (256, 2048)
"""The narrowest and the widest; the slow tests take those between them."""

BETWEEN = (512, 1024)
KINDS = {
    "plain": {},
    "gated": {"gated_mlp": True, "d_ff": 3.5},
    "recomputed": {"recompute": True},
    "gated, recomputed": {"gated_mlp": True, "d_ff": 3.5, "recompute": True},
    "grouped queries": {"n_kv_heads": 4},
    "scores in memory": {"attention": "xla"},
    "large vocabulary": {"vocab_size": 32000},
    "several microbatches": {"n_microbatches": 4},
    "mixture": {"n_experts": 4},
    "gated mixture": {"n_experts": 4, "gated_mlp": True, "d_ff": 2.0},
}


def setting(kind: str, width: int) -> dict:
    """Arguments of the example of a decoder."""
    told = {"d_ff": 4.0, "n_kv_heads": 1, **KINDS[kind]}
    heads = width // 64
    sizes = {"n_heads": heads, "n_kv_heads": heads // told["n_kv_heads"], "d_ff": int(told["d_ff"] * width)}
    usual = {"n_layers": 4, "vocab_size": 8192, "seq_len": 1024, "micro_batch": 4}
    return {**usual, **told, "d_model": width, **sizes}


def counted(step: dict, **software: float) -> float:
    """Peak of a setting by the account, as XLA runs it [byte]."""
    experts = step.get("n_experts", 0)
    mlp = {"d_ff_expert": step["d_ff"], "n_experts": experts, "moe_top_k": 2} if experts else {"d_ff": step["d_ff"]}
    shape = Transformer(
        step["n_layers"],
        step["d_model"],
        step["n_heads"],
        step["seq_len"],
        n_kv_heads=step["n_kv_heads"],
        gated_mlp=step.get("gated_mlp", False),
        vocab_size=step["vocab_size"],
        **mlp,
    )
    plan = dataclasses.replace(
        framework_space("jax").software,
        **{"dp": 1.0, "tp": 1.0, **software},
        micro_batch_size=step["micro_batch"],
        n_microbatches=step.get("n_microbatches", 1),
        recompute="full" if step.get("recompute") else "none",
        flash_attention=float(step.get("attention") != "xla"),
    )
    alone = dataclasses.replace(prior_medians(), activation_factor=jnp.asarray(1.0))
    return float(memory(shape, plan, js.cluster("h100-80gb", 1), alone).measured(0.0))


@pytest.mark.parametrize("widths", [WIDTHS, pytest.param(BETWEEN, marks=pytest.mark.slow)])
def test_the_account_is_the_trace(widths: tuple[int, ...]):
    """Decoders of ten kinds: the median within 2 %, the worst within 5 %."""
    errors = {}
    for kind in KINDS:
        for width in widths:
            step = setting(kind, width)
            errors[kind, width] = counted(step) / float(js.trace(*decoder(**step)).peak_bytes()) - 1.0
    worst = max(errors, key=lambda case: abs(errors[case]))
    assert statistics.median(map(abs, errors.values())) < 0.02
    assert abs(errors[worst]) < 0.05, (worst, errors[worst])


@pytest.mark.parametrize("habit", [{"compiled": 0.0}, {"loss_bytes": 12.0}])
def test_other_habits_are_not_the_trace(habit: dict):
    """Negative control: eager software, logits in 32 bits three times."""
    step = setting("plain", 512)
    assert abs(counted(step, **habit) / counted(step) - 1.0) > 0.05
