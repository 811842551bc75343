"""Serving: prefill, decode, memory and throughput of engines, fitted to measured runs."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.serving.best_engine import ServingChoice as ServingChoice
    from jaxscale.serving.best_engine import ServingSpace as ServingSpace
    from jaxscale.serving.best_engine import best_serving_plan as best_serving_plan
    from jaxscale.serving.best_engine import engine_table as engine_table
    from jaxscale.serving.engine import Engine as Engine
    from jaxscale.serving.engine import Requests as Requests
    from jaxscale.serving.event_loop import SimulatedRequests as SimulatedRequests
    from jaxscale.serving.event_loop import simulate_requests as simulate_requests
    from jaxscale.serving.fit_serving import fit_serving as fit_serving
    from jaxscale.serving.forward_pass import PassTime as PassTime
    from jaxscale.serving.forward_pass import cache_per_sequence as cache_per_sequence
    from jaxscale.serving.forward_pass import decode_pass as decode_pass
    from jaxscale.serving.forward_pass import prefill_pass as prefill_pass
    from jaxscale.serving.forward_pass import prompts_in_step as prompts_in_step
    from jaxscale.serving.lifetime import LifetimeLoad as LifetimeLoad
    from jaxscale.serving.lifetime import TrainingPlans as TrainingPlans
    from jaxscale.serving.lifetime import lifetime_cost as lifetime_cost
    from jaxscale.serving.lifetime import lifetime_optimum as lifetime_optimum
    from jaxscale.serving.lifetime import rollout_split as rollout_split
    from jaxscale.serving.lifetime import rollout_time as rollout_time
    from jaxscale.serving.lifetime import training_plans as training_plans
    from jaxscale.serving.lifetime_shapes import LifetimeLattice as LifetimeLattice
    from jaxscale.serving.lifetime_shapes import LifetimeShape as LifetimeShape
    from jaxscale.serving.lifetime_shapes import best_lifetime_shape as best_lifetime_shape
    from jaxscale.serving.serving_coefficients import ServingCoefficients as ServingCoefficients
    from jaxscale.serving.serving_coefficients import usual_coefficients as usual_coefficients
    from jaxscale.serving.serving_figures import latency_against_load as latency_against_load
    from jaxscale.serving.serving_figures import percentiles_against_rate as percentiles_against_rate
    from jaxscale.serving.serving_figures import serving_frontier as serving_frontier
    from jaxscale.serving.serving_memory import ServingMemory as ServingMemory
    from jaxscale.serving.serving_memory import max_batch as max_batch
    from jaxscale.serving.serving_memory import serving_memory as serving_memory
    from jaxscale.serving.serving_predict import ServingPrediction as ServingPrediction
    from jaxscale.serving.serving_predict import batch_time_ends as batch_time_ends
    from jaxscale.serving.serving_predict import predict_serving as predict_serving
    from jaxscale.serving.serving_record import ServingFit as ServingFit
    from jaxscale.serving.serving_record import load_serving_fit as load_serving_fit
    from jaxscale.serving.serving_rows import stack_levels as stack_levels
    from jaxscale.serving.serving_table import read_serving as read_serving
    from jaxscale.serving.serving_time import ServingTime as ServingTime
    from jaxscale.serving.serving_time import serving_time as serving_time
    from jaxscale.serving.under_load import LoadTime as LoadTime
    from jaxscale.serving.under_load import Percentiles as Percentiles
    from jaxscale.serving.under_load import serving_under_load as serving_under_load

public_face(__name__)
