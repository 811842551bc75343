"""Time of a training step, composed of the cost terms."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_arrays, total_of
from jaxscale.base.jit import concrete_jit
from jaxscale.base.show import Printout, leaves_shown, printed, shares
from jaxscale.base.smooth import Temperature, exposed
from jaxscale.base.units import quantity
from jaxscale.calibration.coefficients import Coefficients, checked
from jaxscale.calibration.record import AnyFit
from jaxscale.costs import data, elementwise, host, matmul, pipeline, weight_streams
from jaxscale.costs.machine import Machine, machine_of
from jaxscale.costs.memory import Memory, memory_with_lead
from jaxscale.costs.microbatch import MicrobatchTimes, host_lead, microbatch_times
from jaxscale.costs.named_arguments import refuse_broken, resolved
from jaxscale.costs.straggler import straggler_time
from jaxscale.costs.terms import Kind, cost_term, declared_terms, terms_by_name
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, model_flops
from jaxscale.models.work import AbstractWork
from jaxscale.plans.local import LocalPlan, local_plan
from jaxscale.plans.plan import Plan

Seconds = Float[Array, "*batch"]


@printed(lambda step: _shown(step))
class StepTime(eqx.Module):
    """Time of a training step by cause; the terms add up to `total` exactly.

    Each field declares a cost term (`cost_term`): activity of the chip, and colour and hatch in figures.

    Attributes:
        matmul: weight matmuls of layers, forward and backward [s].
        attention: attention core, and scans of state-space layers [s].
        memory_bound: norms, activations, residuals, casts and gradient accumulation [s].
        head: logits and cross-entropy, matmul and traffic [s].
        recompute: recomputed forward work [s].
        launch_gaps: gaps between the small kernels of mixture layers [s].
        host: wait for launches by the host [s].
        tensor_parallel: exposed collectives of tp [s].
        context_parallel: exposed key/value ring [s].
        expert_parallel: exposed all-to-alls of tokens to experts [s].
        data_parallel: exposed gradient reduction and parameter gathers [s].
        pipeline_bubble: idle time while the pipeline fills and drains [s].
        pipeline_imbalance: wait of the average stage for the busiest stage [s].
        pipeline_transfer: exposed sends between stages [s].
        optimizer: parameter update [s].
        host_per_step: host time of sends and receives between stages, and of work once per step [s].
        straggler: wait for the slowest node [s].
    """

    matmul: Seconds = cost_term("compute", "blue")
    attention: Seconds = cost_term("compute", "sky")
    memory_bound: Seconds = cost_term("memory", "green")
    head: Seconds = cost_term("compute", "sky", "///")
    recompute: Seconds = cost_term("compute", "purple")
    launch_gaps: Seconds = cost_term("host", "grey")
    host: Seconds = cost_term("host", "grey", "///")
    tensor_parallel: Seconds = cost_term("network", "orange")
    context_parallel: Seconds = cost_term("network", "orange", "///")
    expert_parallel: Seconds = cost_term("network", "orange", "...")
    data_parallel: Seconds = cost_term("network", "red")
    pipeline_bubble: Seconds = cost_term("network", "yellow")
    pipeline_imbalance: Seconds = cost_term("network", "yellow", "///")
    pipeline_transfer: Seconds = cost_term("network", "yellow", "...")
    optimizer: Seconds = cost_term("memory", "green", "///")
    host_per_step: Seconds = cost_term("host", "grey", "...")
    straggler: Seconds = cost_term("network", "ink")

    @property
    def total(self) -> Array:
        """Time of the step, the sum of all terms [s]."""
        return total_of(self.terms().values())

    def terms(self) -> dict[str, Array]:
        """Terms by name, in the order of the fields [s]."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _shown(step: StepTime) -> Printout:
    """Printed terms with shares; a table of leaves for many steps, or for a slope."""
    if np.ndim(step.matmul) or not float(step.total) > 0.0:
        return leaves_shown(step)
    rows, notes = shares(step.terms(), lambda value: quantity(value, "s"))
    return Printout(f"StepTime: {quantity(float(step.total), 's')}", ("term", "time", "share"), rows, notes)


TERMS = declared_terms(StepTime)
"""Table of the cost terms. Bubbles and stragglers are waits inside a collective."""

TERM_NAMES = tuple(term.name for term in TERMS)


def names_of_kind(*kinds: Kind) -> tuple[str, ...]:
    """Names of the cost terms with the given activities of the chip, in order."""
    return tuple(term.name for term in TERMS if term.kind in kinds)


def step_time(
    model: Transformer | AbstractWork | str | Path,
    plan: Any,
    cluster: Cluster | str,
    coefficients: Coefficients | AnyFit = "default",
    temperature: Temperature = 0.0,
) -> StepTime:
    """Time of a training step, term by term: `js.step_time("llama3-8b", js.Plan(dp=8), "h100-80gb")`.

    Every argument is a module of array leaves and works with `jax.grad`, `jax.vmap` and `jax.jit`. Whole degrees give
    the exact model, degrees between whole numbers the continuous relaxation. One compiled program serves all concrete
    arguments.

    Args:
        model: the transformer, or name or file of a transformer, or a traced workload.
        plan: a `Plan`: degrees, batch, schedule; of a traced workload a `ClassPlan`.
        cluster: chips and network; or the name of a chip, for a cluster of the size of the plan.
        coefficients: fitted parameters; or a fit, or name or file of a fit, for the fitted values of the chip.
        temperature: 0 for exact maxima and ceilings (prediction); above 0 for smooth maxima and ceilings (design
            search), with an error of a few times `temperature`, and the mean load of a stage instead of whole layers.
            See `Temperature`.

    Returns:
        The terms of the step [s].

    Raises:
        InputError: an unknown name, or a concrete plan that breaks a rule of `js.violations`.
    """
    given = resolved(model, plan, cluster, coefficients)
    if isinstance(given.model, AbstractWork):
        return _of_own_terms(*given, temperature)
    refuse_broken(given.model, given.plan, given.cluster)
    return _step_time(*given, temperature=temperature)


@concrete_jit
def _step_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, *, temperature: Temperature
) -> StepTime:
    """Time of one step of a transformer."""
    model, plan, cluster, coefficients = as_arrays((model, plan, cluster, coefficients))
    local, machine = local_plan(model, plan, temperature), machine_of(cluster, coefficients)
    layers = microbatch_times(local, machine, coefficients, temperature)
    return times_of_step(local, machine, coefficients, layers, temperature)


def _of_own_terms(
    work: AbstractWork, plan: Any, cluster: Cluster, coefficients: Coefficients, temperature: Temperature
) -> StepTime:
    """Time of one step of a traced workload, from the workload's terms; absent terms are zero."""
    return StepTime(**terms_by_name(work.step_terms(plan, cluster, coefficients, temperature), TERM_NAMES))


def step_and_memory(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> tuple[StepTime, Memory]:
    """Time of a training step and peak memory of the fullest chip, with shared intermediate results.

    Args:
        model: the transformer.
        plan: degrees, batch, schedule.
        cluster: chips and network.
        coefficients: fitted parameters.
        temperature: smoothing, see `step_time` [1].

    Returns:
        The terms of the step [s] and of the peak [byte], equal to the results of `step_time` and of `memory`.
    """
    return _step_and_memory(model, plan, cluster, checked(coefficients), temperature=temperature)


@concrete_jit
def _step_and_memory(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, *, temperature: Temperature
) -> tuple[StepTime, Memory]:
    """Time of one step and peak memory of a transformer."""
    model, plan, cluster, coefficients = as_arrays((model, plan, cluster, coefficients))
    local, machine = local_plan(model, plan, temperature), machine_of(cluster, coefficients)
    layers = microbatch_times(local, machine, coefficients, temperature)
    lead = host_lead(local, coefficients, layers, temperature)
    times = times_of_step(local, machine, coefficients, layers, temperature)
    return times, memory_with_lead(local, machine, coefficients, lead, temperature)


class MicrobatchPace(NamedTuple):
    """Times of a microbatch at the rate of the slower of chip and host.

    Attributes:
        layers: forward and backward passes of all layers, by cause [s].
        waiting: wait of the layers for the host [s].
        head: logits head, forward and backward [s].
        stages: sum and maximum over the stages of the time of the microbatch [s].
        passes: shares of forward pass and weight gradients in the time [1].
    """

    layers: MicrobatchTimes
    waiting: Array
    head: Array
    stages: pipeline.StageTimes
    passes: pipeline.PassShares


def microbatch_pace(
    local: LocalPlan,
    machine: Machine,
    coefficients: Coefficients,
    layers: MicrobatchTimes,
    temperature: Temperature = 0.0,
) -> MicrobatchPace:
    """Times of one microbatch at the rate of the slower of chip and host; arguments as in `times_of_step`."""
    compute, trainable = (local, machine, coefficients), local.model.trainable_share
    # A layer cannot run faster than the host launches the kernels.
    waiting = exposed(layers.host, layers.total, temperature)
    layers, waiting = jax.tree.map(lambda time: time * coefficients.layer_time_factor, (layers, waiting))
    # One forward pass, one pass for the gradients of activations, and one pass for the gradients of trained weights.
    logits = matmul.head_forward(*compute, temperature)
    head = (2.0 + trainable) * logits + 3.0 * elementwise.logits_forward(*compute)
    head = head + weight_streams.head_accumulation_time(*compute, temperature)
    stages = pipeline.stage_times(local, layers.total + waiting, head, temperature)
    # The host launches about as many kernels in each pass.
    forward = layers.forward + (waiting + head) / (2.0 + trainable)
    # Gradients of trained weights: a pass out of 2 + trainable.
    weights = trainable * ((layers.matmul + waiting) / (2.0 + trainable) + logits)
    passes = pipeline.PassShares(forward / stages.total, weights / stages.total)
    return MicrobatchPace(layers, waiting, head, stages, passes)


def times_of_step(
    local: LocalPlan,
    machine: Machine,
    coefficients: Coefficients,
    layers: MicrobatchTimes,
    temperature: Temperature = 0.0,
) -> StepTime:
    """Cost terms of a step from the times of a microbatch.

    Args:
        local: a model under a plan.
        machine: chips and network.
        coefficients: fitted parameters.
        layers: times of one microbatch through all layers.
        temperature: smoothing [1].

    Returns:
        The terms [s].
    """
    compute, plan = (local, machine, coefficients), local.plan
    pace = microbatch_pace(*compute, layers, temperature)
    layers, waiting, head, stages = pace.layers, pace.waiting, pace.head, pace.stages
    forward = layers.forward / plan.pp
    backward = (layers.total + waiting) / plan.pp - forward
    replicas = data.data_parallel(*compute, forward, backward, temperature)
    work = plan.n_microbatches / plan.pp  # a chip of mean load does this share of m whole-model microbatches
    terms = {
        "matmul": layers.matmul * work,
        "attention": layers.attention * work,
        "memory_bound": layers.memory_bound * work,
        "head": head * work,
        "recompute": layers.recompute * work,
        "launch_gaps": layers.launch_gaps * work,
        "host": waiting * work,
        "tensor_parallel": layers.tensor_parallel * work,
        "context_parallel": layers.context_parallel * work,
        "expert_parallel": layers.expert_parallel * work,
        "data_parallel": replicas.step + replicas.microbatch * plan.n_microbatches,
        "pipeline_bubble": pipeline.bubble_time(local, stages, pace.passes, temperature),
        "pipeline_imbalance": pipeline.imbalance_time(local, stages),
        "pipeline_transfer": pipeline.transfer_time(*compute, temperature),
        "optimizer": weight_streams.optimizer_time(*compute),
        "host_per_step": host.per_step_host_time(local, coefficients, temperature),
    }
    undisturbed = total_of(terms.values())
    # The slowest node delays the whole step.
    return StepTime(**terms, straggler=straggler_time(machine, coefficients, undisturbed, temperature))


def tokens_per_step(model: Transformer, plan: Plan) -> Array:
    """Number of tokens of a step, B S [token]."""
    return jnp.asarray(plan.global_batch_size_seqs * model.seq_len)


def model_flops_utilisation(
    model: Transformer, plan: Plan, cluster: Cluster, seconds: ArrayLike, causal: bool = False
) -> Array:
    """Model flops utilisation (MFU): model flops per second over the dense 16-bit peak of the cluster.

    Args:
        model: the transformer.
        plan: global batch.
        cluster: number of chips and peak of a chip.
        seconds: step time [s].
        causal: flop convention, see `model_flops`.

    Returns:
        Utilisation [1].
    """
    flops = model_flops(model, causal) * tokens_per_step(model, plan)
    return flops / (seconds * cluster.n_chips * cluster.chip.peak("bf16"))
