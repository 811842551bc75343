"""Models, chips and loss-free coefficients that tests of cost terms share, as arrays."""

from registry import ideal_coefficients

from jaxscale._arrays import as_arrays
from jaxscale.costs.collectives import effective_link
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plan.plan import Plan

H100 = as_arrays(cluster("h100-80gb", 64))
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
