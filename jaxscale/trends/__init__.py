"""Hardware scaling trends: what more chips, watts and dollars return, and which layout overtakes which."""

from jaxscale.trends.deployment import Layout as Layout
from jaxscale.trends.deployment import Scenario as Scenario
from jaxscale.trends.deployment_library import scenario as scenario
from jaxscale.trends.outcome import Outcome as Outcome
from jaxscale.trends.strong_scaling import best_tensor_degree as best_tensor_degree
from jaxscale.trends.strong_scaling import strong_scaling as strong_scaling
from jaxscale.trends.weak_scaling import weak_scaling as weak_scaling
