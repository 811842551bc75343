"""Best model shape, batch and plan for a budget: design problem, gradient search, and rounding to integers."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.designs.design_result import pareto_front as pareto_front
    from jaxscale.designs.law_designs import LawDesign as LawDesign
    from jaxscale.designs.law_designs import law_design as law_design
    from jaxscale.designs.quantities import stretched as stretched
    from jaxscale.designs.time_to_loss import default_laws as default_laws
    from jaxscale.designs.time_to_loss import run_figures as run_figures

public_face(__name__)
