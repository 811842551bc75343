"""How far training can scale: limits set by data movement and latency, and what would move them."""

from jaxscale.limits.closed_forms import log_latency_wall as log_latency_wall
from jaxscale.limits.frontier.frontier_scenario import Scenario as Scenario
from jaxscale.limits.frontier.frontier_scenario import stack as stack
from jaxscale.limits.scenario_library import load_scenarios as load_scenarios
from jaxscale.limits.scenario_library import scenario as scenario
from jaxscale.limits.search.integer_plan import integer_survey as integer_survey
from jaxscale.limits.search.relaxed_plan import survey as survey
from jaxscale.limits.thresholds import thresholds as thresholds
from jaxscale.limits.utilisation import utilisation as utilisation
