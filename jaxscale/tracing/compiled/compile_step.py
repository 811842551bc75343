"""Compilation of a step ahead of time, for chips that need not be there: `js.compile_for`."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale.base.arrays import number
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.tracing.compiled.absent_devices import absent_gpus, compile_targets
from jaxscale.tracing.compiled.absent_tpus import absent_tpus
from jaxscale.tracing.compiled.class_shardings import output_shardings, sharded_arguments
from jaxscale.tracing.compiled.compiled_step import CompiledStep
from jaxscale.tracing.compiled.program_tables import compiled_collectives, compiled_kernels
from jaxscale.tracing.compiled.program_text import program_text
from jaxscale.tracing.plans.class_plan import ClassPlan, class_plan
from jaxscale.tracing.tracer import abstract_leaves, cudnn_without_a_device, is_array, trace_with_inputs

OPTIONS: dict[str, Any] = {"xla_gpu_autotune_level": 0}
"""Options of the compiler of GPUs: no kernel is timed, since there is no device to time it on."""


class Memories(NamedTuple):
    """Memory of a compiled program on one chip.

    Attributes:
        arguments: weights, state and data [byte].
        results: results that take no place of an argument [byte].
        temporary: values of the program itself, at its fullest point [byte].
    """

    arguments: float
    results: float
    temporary: float


def compile_for(
    fn: Callable[..., Any],
    *args: Any,
    gpu: str,
    n: int = 1,
    weights: int | Sequence[int] = 0,
    plan: ClassPlan | None = None,
    hardware: Hardware | None = None,
) -> CompiledStep:
    """Step compiled for chips that need not be there: peak memory, kernels and collectives of XLA.

    Nothing is run and no chip is needed, but their compiler is: that of NVIDIA GPUs (`pip install jaxscale[aot]`) or of
    TPUs (`pip install jaxscale[aot-tpu]`). Kernels are not timed, so that a compiler beside a GPU may choose others.

    Args:
        fn: function of the arguments, such as a training step.
        args: its arguments, arrays or `jax.ShapeDtypeStruct`s; leaves that are no arrays are static.
        gpu: id of the GPU or TPU in the catalogue of chips.
        n: number of chips [1].
        weights: places of the arguments that hold weights and state of the optimiser, whose memory the step may use
            again for its results.
        plan: degrees over the dimension classes of `trace(fn, *args)`; all chips share the batch where None.
        hardware: catalogue of chips; the shipped one where None.

    Returns:
        What the compiler made, beside the trace of the same step under the plan.

    Raises:
        InputError: the compiler is not installed or lacks a description of the chip, a plan that shardings cannot say,
            or a step that cannot be traced.
    """
    chip = (hardware or load_hardware())[gpu]
    if chip.id in compile_targets()["slices"]:
        devices = absent_tpus(chip.id, n)
    else:
        domain = number(np.asarray(chip.network().domain_size)[0])
        devices = absent_gpus(chip.id, n, max(round(min(domain, n)), 1))
    return compile_on(fn, args, devices, weights, plan, name=f"{n} {gpu}", capacity=number(chip.chip().hbm_bytes))


def compile_on(
    fn: Callable[..., Any],
    args: Sequence[Any],
    devices: Sequence[Any],
    weights: int | Sequence[int] = 0,
    plan: ClassPlan | None = None,
    *,
    name: str = "",
    capacity: float = np.inf,
) -> CompiledStep:
    """Step compiled for given devices; see `compile_for`.

    Args:
        fn: function of the arguments.
        args: its arguments.
        devices: devices, those of this machine or absent ones.
        weights: places of the arguments that hold weights and state.
        plan: degrees over dimension classes; all devices share the batch where None.
        name: of the devices.
        capacity: memory of one of them [byte].

    Returns:
        What the compiler made.

    Raises:
        InputError: as `compile_for`.
    """
    places = {weights} if isinstance(weights, int) else set(weights)
    work, inputs = trace_with_inputs(fn, args, weights)
    plan = plan_of_all(work, len(devices)) if plan is None else plan
    rebuild = abstract_leaves(fn, args, places)[-1]

    def flat(*leaves: Any) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(fn(*rebuild(leaves))) if is_array(leaf)]

    sharded = sharded_arguments(inputs, plan, devices)
    state = [place for place, one in enumerate(inputs) if one.origin != "data"]
    begin = time.perf_counter()
    with cudnn_without_a_device(), warnings.catch_warnings():
        # A step that returns no new state has no use for the memory of the old one.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        results = output_shardings(flat, sharded.leaves, state, sharded.shardings)
        lowered = jax.jit(flat, donate_argnums=state, out_shardings=results).lower(*sharded.leaves)
        is_gpu = devices[0].platform not in ("cpu", "tpu")
        compiled = lowered.compile(compiler_options=OPTIONS if is_gpu else None)
    seconds = time.perf_counter() - begin
    text = program_text(compiled.as_text() or "")
    memories = memories_of(compiled)
    return CompiledStep(
        name=name,
        capacity=capacity,
        seconds=seconds,
        argument_bytes=memories.arguments,
        result_bytes=memories.results,
        temporary_bytes=memories.temporary,
        kernels=compiled_kernels(text),
        collectives=compiled_collectives(text),
        work=work,
        plan=plan,
    )


def plan_of_all(work: Any, n_chips: int) -> ClassPlan:
    """Plan in which all chips share the batch; on one chip nothing is split."""
    return class_plan(work, data=n_chips, data_class=None if n_chips > 1 else work.tables.class_names[-1])


def memories_of(compiled: Any) -> Memories:
    """Memory of a compiled program."""
    told = compiled.memory_analysis()
    return Memories(
        arguments=float(told.argument_size_in_bytes),
        results=float(told.output_size_in_bytes - told.alias_size_in_bytes),
        temporary=float(told.temp_size_in_bytes),
    )
