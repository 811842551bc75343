"""Registry of commands, and of functions of sub-packages, as text, so that the command line imports on demand."""

COMMANDS = {
    "demo": "jaxscale.cli.demo_command:DemoCommand",
    "fit": "jaxscale.cli.fit:FitCommand",
    "predict": "jaxscale.cli.predict:PredictCommand",
    "explain": "jaxscale.explaining.explain_command:ExplainCommand",
    "plan": "jaxscale.cli.plan:PlanCommand",
    "shape": "jaxscale.cli.shape:ShapeCommand",
    "serving": "jaxscale.serving.serving_command:ServingCommand",
    "rollout": "jaxscale.rollouts.rollout_command:RolloutCommand",
    "law": "jaxscale.laws.law_command:LawCommand",
    "burst": "jaxscale.burst.burst_command:BurstCommand",
    "islands": "jaxscale.islands.islands_command:IslandsCommand",
    "limits": "jaxscale.limits.limits_command:LimitsCommand",
    "sweep": "jaxscale.sweeps.sweep_command:SweepCommand",
    "trends": "jaxscale.trends.trends_command:TrendsCommand",
    "explore": "jaxscale.explore.explore_command:ExploreCommand",
    "trace": "jaxscale.tracing.trace_command:TraceCommand",
    "measure": "jaxscale.measuring.measure_command:MeasureCommand",
    "hardware": "jaxscale.cli.catalogue:HardwareCommand",
    "model": "jaxscale.cli.catalogue:ModelCommand",
    "read": "jaxscale.launch.read_command:ReadCommand",
}
"""Class of each command, in the order in which help lists them."""

LAUNCH_TEXT = "jaxscale.launch.writers.launch_text:launch_text"
"""Function that writes a plan as launch settings."""

READ_RUN = "jaxscale.launch.readers.read_run:run_of"
"""Function that reads a log or a launch file as a row of a runs table."""

WRITERS = "jaxscale.launch.writers.launch_text:WRITERS"
"""Frameworks for which settings are written."""

TIMELINE = "jaxscale.timeline.step_timeline:step_timeline"
"""Function that makes a timeline of a predicted step."""
