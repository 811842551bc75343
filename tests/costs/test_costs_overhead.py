"""The pace of the host: waits, launches ahead of the chip, sends and receives, work once per step."""

import numpy as np
import pytest
from cost_cases import LLAMA, ONE_H100, ideal, on, plan

from jaxscale.base.arrays import as_arrays
from jaxscale.costs.host import COMPILED_HOST, GRAPHS_HOST, ONE_CHIP_STEP, host_time, launch_lead, per_step_host_time
from jaxscale.costs.machine import machine_of
from jaxscale.costs.microbatch import microbatch_times
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.plans.local import local_plan


def test_the_host_is_waited_for_only_where_it_is_slower():
    busy = float(microbatch_times(*on(LLAMA, plan())).total)
    for per_layer, waited in ((0.5 * busy / 32, 0.0), (busy / 32, 0.0), (3.0 * busy / 32, 2.0 * busy)):
        waits = step_time(LLAMA, plan(), ONE_H100, ideal(host_time_layer=per_layer)).host
        np.testing.assert_allclose(waits, waited, rtol=1e-6, atol=1e-9 * busy)


def test_untuned_software_adds_time_of_its_host_which_a_slower_chip_hides():
    coefficients = ideal(host_time_layer=1e-3)
    machine = machine_of(as_arrays(cluster("h100-80gb", 1)), coefficients)
    for execution, share in (("eager", 1.0), ("compiled", COMPILED_HOST), ("cuda-graphs", GRAPHS_HOST)):
        untuned = plan(execution=execution, host_time_layer=4e-3)
        time = host_time(local_plan(LLAMA, untuned), machine, coefficients)
        np.testing.assert_allclose(time, 32 * (share * 1e-3 + 4e-3), rtol=1e-6)
    busy = float(microbatch_times(*on(LLAMA, plan())).total)
    for further, waited in ((0.0, 0.0), (0.5 * busy / 32, 0.0), (3.0 * busy / 32, 2.0 * busy)):
        waits = step_time(LLAMA, plan(host_time_layer=further), ONE_H100, ideal()).host
        np.testing.assert_allclose(waits, waited, rtol=1e-6, atol=1e-9 * busy)


def test_the_host_serves_the_network_only_where_the_job_leaves_its_node():
    coefficients = ideal(host_time_layer=1e-3, host_time_tp_network=1e-4)
    for n_chips, tp, per_layer in ((8, 4, 1e-3), (16, 4, 1.4e-3), (1024, 2, 1.2e-3), (1024, 1, 1e-3)):
        machine = machine_of(as_arrays(cluster("h100-80gb", n_chips)), coefficients)
        time = host_time(local_plan(LLAMA, plan(tp=tp)), machine, coefficients)
        np.testing.assert_allclose(time, 32 * per_layer, rtol=1e-9)


@pytest.mark.parametrize("stages", [1, 2])
def test_hosts_launch_ahead_of_slower_chips_until_their_queue_is_full(stages: int):
    coefficients = ideal(pp_slot_time=0.4)
    # With two stages, each side has half of the layers, and the host sends and receives once.
    pace = {1: 1.0, 2: 0.5 + 0.2}[stages]
    for slower, share in ((0.5, 0.0), (1.0, 0.0), (1.25, 0.4), (2.0, 1.0), (10.0, 1.0)):
        device = slower * pace * stages
        local, last = (local_plan(LLAMA, plan(pp=stages, n_microbatches=count)) for count in (8, stages))
        np.testing.assert_allclose(launch_lead(local, coefficients, 1.0, device), share, atol=1e-12)
        # No microbatch follows those in flight.
        assert launch_lead(last, coefficients, 1.0, device) == 0.0


def test_per_step_host_time_counts_sends_and_receives_and_steps():
    time = per_step_host_time(local_plan(LLAMA, plan(n_microbatches=5)), ideal(pp_slot_time=0.5, step_time=1.0))
    np.testing.assert_allclose(time, ONE_CHIP_STEP, rtol=1e-9)
    many = per_step_host_time(local_plan(LLAMA, plan(n_microbatches=5, dp=8)), ideal(step_time=1.0))
    np.testing.assert_allclose(many, 1.0, rtol=1e-9)
    # A stage of two has one neighbour, the busiest of more has two.
    for stages, neighbours in ((2, 1), (3, 2), (16, 2)):
        for virtual in (1, 4):
            local = local_plan(LLAMA, plan(n_microbatches=8, pp=stages, vpp=virtual))
            time = per_step_host_time(local, ideal(pp_slot_time=0.5))
            np.testing.assert_allclose(time, 8 * virtual * neighbours / 2 * 0.5, rtol=1e-9)
