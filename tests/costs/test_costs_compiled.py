"""What a compiler leaves out: sums of one gradient, passes over logits."""

import numpy as np
import pytest
from cost_cases import H100, LLAMA, ideal, on, plan

from jaxscale.costs.elementwise import logits_forward
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
