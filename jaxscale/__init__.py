"""jaxscale: training time as a differentiable JAX function of model shape, parallel plan, batch and hardware."""

from jaxscale import limits as limits
from jaxscale import trends as trends
from jaxscale.catalogue import Hardware as Hardware
from jaxscale.catalogue import chip as chip
from jaxscale.catalogue import cluster as cluster
from jaxscale.catalogue import load_hardware as load_hardware
from jaxscale.catalogue import model as model
from jaxscale.choose.best_plan import best_plan as best_plan
from jaxscale.choose.enumerate import PlanSpace as PlanSpace
from jaxscale.choose.optimize import Budget as Budget
from jaxscale.choose.optimize import optimize_shape as optimize_shape
from jaxscale.choose.result import PlanChoice as PlanChoice
from jaxscale.choose.sensitivity import elasticity as elasticity
from jaxscale.choose.shape import search_shape as search_shape
from jaxscale.coefficients import Coefficients as Coefficients
from jaxscale.coefficients import prior_medians as prior_medians
from jaxscale.errors import InputError as InputError
from jaxscale.fit.fitting import fit as fit
from jaxscale.fit.result import FitResult as FitResult
from jaxscale.fit.store import load_fit as load_fit
from jaxscale.fit.store import resolve as resolve
from jaxscale.hardware import Chip as Chip
from jaxscale.hardware import Cluster as Cluster
from jaxscale.hardware import Network as Network
from jaxscale.memory import Memory as Memory
from jaxscale.memory import memory as memory
from jaxscale.plan import Plan as Plan
from jaxscale.plan import violations as violations
from jaxscale.predict import Prediction as Prediction
from jaxscale.predict import predict as predict
from jaxscale.runs import Runs as Runs
from jaxscale.runs.reader import read_runs as read_runs
from jaxscale.step import StepTime as StepTime
from jaxscale.step import model_flops_utilisation as model_flops_utilisation
from jaxscale.step import step_time as step_time
from jaxscale.workload import Transformer as Transformer
from jaxscale.workload import model_flops as model_flops
from jaxscale.workload import n_active_params as n_active_params
from jaxscale.workload import n_params as n_params

__version__ = "0.1.0"
