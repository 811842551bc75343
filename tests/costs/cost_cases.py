"""Models, chips and loss-free coefficients that tests of cost terms share, as arrays."""

import equinox as eqx
from registry import ideal_coefficients

from jaxscale.base.arrays import as_arrays
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Link, Machine, effective_link, machine_of
from jaxscale.costs.matmul import MatmulRates, matmul_rates
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.local import LocalPlan, local_plan
from jaxscale.plans.plan import Plan

H100 = as_arrays(cluster("h100-80gb", 64))
ONE_H100 = as_arrays(cluster("h100-80gb", 1))
LLAMA = as_arrays(model("llama3-8b"))
MIXTRAL = as_arrays(model("mixtral-8x7b"))
IDEAL = as_arrays(ideal_coefficients())
LINK = effective_link(H100.network, IDEAL)


def plan(**fields: float | str | bool) -> Plan:
    """A plan of arrays."""
    return as_arrays(Plan(**fields))


def ideal(**changes: float):
    """Loss-free coefficients, some changed, as arrays."""
    return as_arrays(ideal_coefficients(**changes))


def on(
    shape: Transformer, layout: Plan, coefficients: Coefficients = IDEAL, link: Link | None = None
) -> tuple[LocalPlan, Machine, Coefficients]:
    """Arguments of a cost term: a model under a plan on H100s, whose network may be another one."""
    machine = machine_of(H100, coefficients)
    machine = eqx.tree_at(lambda m: m.link, machine, LINK if link is None else link)
    return local_plan(shape, layout), machine, coefficients


def rates(layout: Plan, coefficients: Coefficients) -> MatmulRates:
    """Rates of the weight matmuls of a plan on an H100."""
    local, machine, _ = on(LLAMA, layout, coefficients)
    return matmul_rates(layout.precision, local.element_bytes, machine, coefficients)
