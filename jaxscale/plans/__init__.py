"""Parallel plans for a given model and cluster: enumeration, scoring, choice and explanation."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.plans.against import compare_design as compare_design
    from jaxscale.plans.against import published_designs as published_designs

public_face(__name__)
