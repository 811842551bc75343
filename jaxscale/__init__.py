"""jaxscale: training time as a differentiable JAX function of model shape, parallel plan, batch and hardware."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale import burst as burst
    from jaxscale import designs as designs
    from jaxscale import examples as examples
    from jaxscale import explaining as explaining
    from jaxscale import islands as islands
    from jaxscale import laws as laws
    from jaxscale import limits as limits
    from jaxscale import measuring as measuring
    from jaxscale import plans as plans
    from jaxscale import report as report
    from jaxscale import rollouts as rollouts
    from jaxscale import serving as serving
    from jaxscale import sweeps as sweeps
    from jaxscale import timeline as timeline
    from jaxscale import tracing as tracing
    from jaxscale import trends as trends
    from jaxscale.base.documents import data_path as data_path
    from jaxscale.base.errors import InputError as InputError
    from jaxscale.calibration.coefficients import Coefficients as Coefficients
    from jaxscale.calibration.coefficients import prior_medians as prior_medians
    from jaxscale.calibration.record import Fit as Fit
    from jaxscale.calibration.record import load_fit as load_fit
    from jaxscale.costs.memory import Memory as Memory
    from jaxscale.costs.memory import memory as memory
    from jaxscale.costs.step import StepTime as StepTime
    from jaxscale.costs.step import model_flops_utilisation as model_flops_utilisation
    from jaxscale.costs.step import step_time as step_time
    from jaxscale.designs.best_design import best_design as best_design
    from jaxscale.designs.budgets import Budget as Budget
    from jaxscale.designs.whole_run import best_run as best_run
    from jaxscale.explaining.explanation import Explanation as Explanation
    from jaxscale.explaining.explanation import explain as explain
    from jaxscale.fitting.fitting import fit as fit
    from jaxscale.fitting.result import FitResult as FitResult
    from jaxscale.hardware.catalogue import Hardware as Hardware
    from jaxscale.hardware.catalogue import chip as chip
    from jaxscale.hardware.catalogue import cluster as cluster
    from jaxscale.hardware.catalogue import load_hardware as load_hardware
    from jaxscale.hardware.cluster import Chip as Chip
    from jaxscale.hardware.cluster import Cluster as Cluster
    from jaxscale.hardware.cluster import Network as Network
    from jaxscale.models import model as model
    from jaxscale.models.transformer import Transformer as Transformer
    from jaxscale.models.transformer import attention_params as attention_params
    from jaxscale.models.transformer import mlp_params as mlp_params
    from jaxscale.models.transformer import model_flops as model_flops
    from jaxscale.models.transformer import n_active_params as n_active_params
    from jaxscale.models.transformer import n_params as n_params
    from jaxscale.plans.against import compare_plan as compare_plan
    from jaxscale.plans.best_plan import best_plan as best_plan
    from jaxscale.plans.choice import PlanChoice as PlanChoice
    from jaxscale.plans.enumerate import PlanSpace as PlanSpace
    from jaxscale.plans.plan import Plan as Plan
    from jaxscale.plans.rules import violations as violations
    from jaxscale.plans.sensitivity import elasticity as elasticity
    from jaxscale.plans.sensitivity import named_elasticities as named_elasticities
    from jaxscale.rollouts.rollout_step import RolloutStep as RolloutStep
    from jaxscale.rollouts.rollout_step import rollout_step as rollout_step
    from jaxscale.runs import Runs as Runs
    from jaxscale.runs.predict import Prediction as Prediction
    from jaxscale.runs.predict import predict as predict
    from jaxscale.runs.reader import read_runs as read_runs
    from jaxscale.sweeps.run_sweep import sweep as sweep
    from jaxscale.sweeps.sweep_store import open_sweep as open_sweep
    from jaxscale.tracing.class_plan import ClassPlan as ClassPlan
    from jaxscale.tracing.class_plan import class_plan as class_plan
    from jaxscale.tracing.compile_step import CompiledStep as CompiledStep
    from jaxscale.tracing.compile_step import compile_for as compile_for
    from jaxscale.tracing.pace_fit import PaceResult as PaceResult
    from jaxscale.tracing.traced_workload import Workload as Workload
    from jaxscale.tracing.traced_workload import load_workload as load_workload
    from jaxscale.tracing.tracer import trace as trace
    from jaxscale.tracing.tracer import trace_sharded as trace_sharded

public_face(__name__)

__version__ = "0.2.0"
