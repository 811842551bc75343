"""Plans that a search offers for a framework are plans that its own rules take."""

import numpy as np
import pytest
from written import fields

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.launch.writers.launch_text import launch_text
from jaxscale.plans.enumerate import PlanSpace, enumerate_plans
from jaxscale.plans.plan_questions import framework_space

FRAMEWORKS = ("megatron-lm", "megatron-bridge", "torchtitan", "maxtext", "deepspeed", "nanotron")
N_PLANS = 8


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen2.5-14b", "deepseek-v3"])
def test_no_plan_of_a_space_is_refused(framework: str, name: str):
    """Of a sample of every decision; only what is fixed by the model may be refused, and that in all plans."""
    table = enumerate_plans(js.model(name, seq_len=4096), 32, 128, framework_space(framework))
    rows = np.random.default_rng(1).choice(len(table), size=min(N_PLANS, len(table)), replace=False)
    assert len(rows) == N_PLANS
    for row in rows:
        launch_text(framework, table.plan(int(row)).words(), fields(name), 4096, name)


def test_a_space_of_everything_holds_plans_that_are_refused():
    """Negative control: without the framework's rules some plans are refused."""
    table = enumerate_plans(js.model("llama3.2-1b", seq_len=4096), 32, 128, PlanSpace())
    refused = 0
    for row in range(0, len(table), max(1, len(table) // 25)):
        try:
            launch_text("torchtitan", table.plan(row).words(), fields("llama3.2-1b"), 4096)
        except InputError:
            refused += 1
    assert refused > 0
