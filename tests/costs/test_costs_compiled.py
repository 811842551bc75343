"""What a compiler leaves out: sums of one gradient, passes over logits, matmuls whose outputs nothing needs."""

import numpy as np
import pytest
from cost_cases import H100, LLAMA, MIXTRAL, ideal, on, plan

from jaxscale.costs.elementwise import logits_forward
from jaxscale.costs.matmul import dense_forward, expert_forward, last_projections
from jaxscale.costs.microbatch import microbatch_times
from jaxscale.costs.weight_streams import accumulation_time

BYTES = 18.0


@pytest.mark.parametrize(("execution", "one", "several"), [("compiled", 6.0, 18.0), ("eager", 18.0, 18.0)])
def test_one_microbatch_of_a_compiled_step_has_no_sum(execution: str, one: float, several: float):
    """Casts read 4 bytes and write 2; a sum reads 8 and writes 4, from two microbatches on."""
    for count, traffic in ((1, one), (2, several), (7, several)):
        local, machine, c = on(LLAMA, plan(execution=execution, n_microbatches=count), ideal(accumulation_bytes=BYTES))
        seconds = traffic * local.dense_params / H100.chip.hbm_bandwidth
        np.testing.assert_allclose(accumulation_time(local, machine, c), seconds, rtol=1e-6)


def test_a_compiled_loss_makes_fewer_passes_over_the_logits():
    eager, compiled = (
        logits_forward(*on(LLAMA, plan(execution=execution), ideal(logit_bytes=34.0)))
        for execution in ("eager", "compiled")
    )
    logits = float(LLAMA.seq_len * LLAMA.vocab_size)
    for seconds, traffic in ((eager, 34.0), (compiled, 14.0)):
        np.testing.assert_allclose(3.0 * seconds, traffic * logits / H100.chip.hbm_bandwidth, rtol=1e-6)


@pytest.mark.parametrize("shape", [LLAMA, MIXTRAL], ids=["dense", "mixture"])
def test_a_compiler_makes_the_last_matmuls_once(shape):
    """One of three matrices of a gated MLP, dense or of experts, is not multiplied again."""
    again = {
        execution: microbatch_times(*on(shape, plan(execution=execution, recompute="full"))).recompute
        for execution in ("eager", "compiled")
    }
    layout = plan(execution="compiled", recompute="full")
    if shape is LLAMA:
        flops = 2.0 * float(shape.seq_len * shape.n_layers * shape.d_model * shape.d_ff)
        last = flops / float(H100.chip.peak("bf16"))
        np.testing.assert_allclose(last_projections(*on(shape, layout)), last, rtol=1e-6)
    else:
        last = float(last_projections(*on(shape, layout)))
        np.testing.assert_allclose(3.0 * last, float(expert_forward(*on(shape, layout))), rtol=1e-3)
    np.testing.assert_allclose(again["eager"] - again["compiled"], last, rtol=1e-3)
    assert last < 0.5 * float(dense_forward(*on(shape, layout)) + expert_forward(*on(shape, layout)))
