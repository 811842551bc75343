"""Sweeps: evaluation of a question of the package over a product of axes, in a labelled store that can be resumed."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.sweeps.question import SweepSpec as SweepSpec
    from jaxscale.sweeps.run_sweep import sweep as sweep
    from jaxscale.sweeps.sweep_figure import sweep_figure as sweep_figure
    from jaxscale.sweeps.sweep_spec import read_spec as read_spec
    from jaxscale.sweeps.sweep_store import open_sweep as open_sweep

public_face(__name__)
