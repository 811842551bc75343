"""Measured beside predicted time of each component of a step, to explain a run slower or faster than predicted."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.explaining.explanation import Explanation as Explanation
    from jaxscale.explaining.explanation import explain as explain
    from jaxscale.explaining.trace_files import KernelTrace as KernelTrace
    from jaxscale.explaining.trace_files import read_traces as read_traces

public_face(__name__)
