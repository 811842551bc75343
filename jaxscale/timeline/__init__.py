"""Timeline of a predicted step: events of each pipeline rank over time, for trace viewers."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.timeline.schedules import Event as Event
    from jaxscale.timeline.schedules import StagePass as StagePass
    from jaxscale.timeline.schedules import operation_orders as operation_orders
    from jaxscale.timeline.schedules import simulated as simulated
    from jaxscale.timeline.step_timeline import StepTimeline as StepTimeline
    from jaxscale.timeline.step_timeline import step_timeline as step_timeline
    from jaxscale.timeline.step_timeline import timeline_figure as timeline_figure

public_face(__name__)
