"""Ahead-of-time compilation of a step for absent chips (`js.compile_for`), compared with the trace of the step."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.table import Table, TableColumn, make_table, text_column, text_of
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.tracing.absent_devices import absent_gpus, absent_tpus, compile_targets
from jaxscale.tracing.class_plan import ClassPlan, class_exchanges, class_plan, local_sizes
from jaxscale.tracing.plan_time import COLLECTIVE_KINDS, PRODUCTS
from jaxscale.tracing.program_tables import (
    CompiledCollective,
    CompiledKernel,
    compiled_collectives,
    compiled_kernels,
    program_text,
)
from jaxscale.tracing.traced_workload import Workload
from jaxscale.tracing.tracer import InputAxes, abstract_leaves, cudnn_without_a_device, is_array, trace_with_inputs

KINDS = ("matmul", "conv", "attention", "other")
"""Kernel classes in the summary of a compiled program."""

NAMES = {"matmul": "matmul", "attention": "attention", **dict.fromkeys(("conv", "grouped_conv", "conv3d"), "conv")}
"""Kernel class by kind of the traced kernel; `other` for all further kernels."""

REDUCED = ("gradients", "statistics", "tensor_forward", "tensor_backward", "scatters")
"""Exchanges of a plan that reduce values of several chips."""


FIGURE_COLUMNS = (
    text_column("of one chip", says="{}:"),
    TableColumn("compiled", stays=True),
    TableColumn("traced"),
)
"""Columns of the table of comparisons."""


class ComparedFigure(NamedTuple):
    """Quantity of a step by the compiler and by the trace.

    Attributes:
        name: name and unit of the quantity.
        compiled: value by the compiler.
        traced: value by the trace under the plan.
    """

    name: str
    compiled: float
    traced: float


@dataclass(frozen=True)
class CompiledStep:
    """Step compiled for one chip of a plan.

    Attributes:
        name: number and id of the chips.
        capacity: memory of a chip [byte].
        seconds: compilation time [s].
        argument_bytes: size of weights, state and data [byte].
        result_bytes: size of the results, donated arguments left out [byte].
        temporary_bytes: peak memory of temporary values [byte].
        kernels: kernels in program order.
        collectives: collectives by kind and groups of chips.
        work: trace of the step for the whole batch.
        plan: degrees of the compilation.
    """

    name: str
    capacity: float
    seconds: float
    argument_bytes: float
    result_bytes: float
    temporary_bytes: float
    kernels: tuple[CompiledKernel, ...]
    collectives: tuple[CompiledCollective, ...]
    work: Workload
    plan: ClassPlan

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a chip according to the compiler [byte]."""
        # XLA's temporaries exclude arguments and results.
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak memory is within the chip's capacity."""
        return self.peak_bytes <= self.capacity

    def launches(self, *kinds: str) -> float:
        """Kernel launches per step, of the given classes or of all [1]."""
        return float(sum(one.launches for one in self.kernels if not kinds or one.kind in kinds))

    def bytes(self, *kinds: str) -> float:
        """Bytes read and written by kernels per step, of the given classes or of all [byte]."""
        return float(sum(one.bytes for one in self.kernels if not kinds or one.kind in kinds))

    def beside_trace(self) -> list[ComparedFigure]:
        """Comparison of compiler and trace per chip: memory, traffic, kernels and collectives."""
        local = Workload(local_sizes(self.work, self.plan), self.work.tables)
        columns = local.columns()
        moved, launches = np.asarray(columns.bytes), np.asarray(columns.launches)
        is_kernel = np.array([kind not in COLLECTIVE_KINDS for kind in local.tables.kinds])
        kinds = np.array([NAMES.get(kind, "matmul" if kind in PRODUCTS else "other") for kind in local.tables.kinds])
        rows = [
            ComparedFigure("peak memory [GB]", self.peak_bytes / 1e9, self._traced_peak() / 1e9),
            ComparedFigure("traffic [GB]", self.bytes() / 1e9, float(moved[is_kernel].sum()) / 1e9),
        ]
        for kind in KINDS:
            mine = is_kernel & (kinds == kind)
            row = ComparedFigure(f"{kind} kernels", self.launches(kind), float(launches[mine].sum()))
            rows += [row] if row.compiled or row.traced else []
        return rows + self._reduced()

    def _traced_peak(self) -> float:
        """Peak memory of a chip by the trace: sharded state, all further values at local sizes [byte]."""
        tables, sizes = self.work.tables, local_sizes(self.work, self.plan)
        # Weights and state are spread over the chips of a copy.
        shared = np.array([origin in ("weights", "state") for origin in tables.point_origins])
        held = tables.points.values(sizes) / jnp.where(shared, self.plan.shard, 1.0)
        return float(jnp.max(jnp.zeros(len(tables.point_phases)).at[tables.points.row].add(held)))

    def _reduced(self) -> list[ComparedFigure]:
        """Volumes of collectives that reduce, and of collectives that gather."""
        exchanges = class_exchanges(self.work, self.plan)
        traced = sum(float(getattr(exchanges, name).volume) for name in REDUCED)
        reduced = self.collective_bytes("all-reduce", "reduce-scatter")
        gathered = self.collective_bytes("all-gather")
        rows = [
            ComparedFigure("reduced [GB]", reduced / 1e9, traced / 1e9),
            ComparedFigure("gathered [GB]", gathered / 1e9, float(exchanges.gathers.volume) / 1e9),
        ]
        return [row for row in rows if row.compiled or row.traced]

    def collective_bytes(self, *kinds: str) -> float:
        """Bytes of the collectives of the given kinds, per step and chip [byte]."""
        return float(sum(one.bytes for one in self.collectives if one.kind in kinds))

    def parts(self) -> list[str | Table]:
        """Text on the compilation, comparison of compiler and trace, and collectives."""
        capacity = "" if np.isinf(self.capacity) else f" of {self.capacity / 1e9:.1f} GB"
        told = f"compiled for {self.name} in {self.seconds:.1f} s: {self.peak_bytes / 1e9:.2f} GB at the peak{capacity}"
        figures = [(row.name, f"{row.compiled:,.2f}", f"{row.traced:,.2f}") for row in self.beside_trace()]
        collectives = [
            f"{one.count:g} {one.kind} among {one.members} chips, stride {one.stride}: {one.bytes / 1e6:,.2f} MB"
            for one in self.collectives
        ]
        return [told, make_table("", FIGURE_COLUMNS, figures), *collectives]

    def __str__(self) -> str:
        """Text with the figures of compiler and trace, and the collectives."""
        return text_of(self.parts())


AXES = ("copies", "shard", "tensor")
"""Mesh axes of a plan: copies of the weights, chips that share a copy, chips that split classes."""


class ShardedArguments(NamedTuple):
    """Arguments of a step with the shardings of a plan.

    Attributes:
        leaves: abstract arrays with their shardings.
        shardings: shardings of the leaves; None on a single device.
    """

    leaves: list[jax.ShapeDtypeStruct]
    shardings: list[Any]


def sharded_arguments(inputs: Sequence[InputAxes], plan: ClassPlan, devices: Sequence[Any]) -> ShardedArguments:
    """Arguments of a step with the shardings of a plan.

    Args:
        inputs: leaves of the arguments with the classes of their axes.
        plan: degrees, with a single stage and a single microbatch.
        devices: devices, as many as chips of the plan.

    Raises:
        InputError: a plan that shardings cannot express.
    """
    degrees = {name: number(getattr(plan, name)) for name in ("data", "shard", "tensor", "pipeline", "n_microbatches")}
    if degrees["pipeline"] > 1 or degrees["n_microbatches"] > 1:
        raise InputError("stages and microbatches are part of a program; expected a plan with one of each to compile")
    sizes = (round(degrees["data"] / degrees["shard"]), round(degrees["shard"]), round(degrees["tensor"]))
    if np.prod(sizes) != len(devices):
        raise InputError(f"the plan has {np.prod(sizes):g} chips; expected one of n = {len(devices)}")
    mesh = Mesh(np.asarray(devices, dtype=object).reshape(sizes), AXES)
    split = np.asarray(plan.split) > 0
    leaves = [leaf_sharding(one, plan, split, mesh) for one in inputs]
    arrays = [
        jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
        for one, sharding in zip(inputs, leaves, strict=True)
    ]
    return ShardedArguments(arrays, leaves)


def leaf_sharding(one: InputAxes, plan: ClassPlan, split: np.ndarray, mesh: Mesh) -> NamedSharding:
    """Sharding of an array: batch over all copies, split classes over `tensor`, shared weights over `shard`.

    Raises:
        InputError: a class that is not the major factor of its axis, or does not divide evenly.
    """
    parts: list[Any] = [None] * len(one.shape)
    for axis, places in enumerate(one.classes):
        for minor, place in enumerate(places):
            # The batch is split over copies and shards alike.
            wanted = "tensor" if split[place] else ("copies", "shard") if place == plan.data_class else None
            if wanted is None or ways_of(mesh, wanted) == 1:
                continue
            # JAX shards an axis by contiguous blocks: the major factor alone.
            if minor:
                raise InputError(f"axis {axis} of {one.label} is divided inside a class; expected another split")
            parts[axis] = wanted
    shard = mesh.shape["shard"]
    # A copy shared by several chips is sharded along the longest axis that is still whole.
    free = [axis for axis, size in enumerate(one.shape) if parts[axis] is None and size % shard == 0]
    if one.origin != "data" and shard > 1 and free:
        parts[max(free, key=lambda axis: one.shape[axis])] = "shard"
    for axis, part in enumerate(parts):
        ways = ways_of(mesh, part or ())
        if one.shape[axis] % ways:
            raise InputError(f"axis {axis} of {one.label} has length {one.shape[axis]}; expected a multiple of {ways}")
    return NamedSharding(mesh, PartitionSpec(*parts))


def ways_of(mesh: Mesh, names: str | tuple[str, ...]) -> int:
    """Number of shards along an array axis that is split over given mesh axes [1]."""
    return int(np.prod([mesh.shape[name] for name in ((names,) if isinstance(names, str) else names)]))


def output_shardings(
    function: Callable[..., Any], leaves: Sequence[jax.ShapeDtypeStruct], state: Sequence[int], shardings: Sequence[Any]
) -> Any:
    """Shardings of the results of a step: new state sharded as old state, remaining results by the compiler.

    Args:
        function: function from the leaves to a list of arrays.
        leaves: abstract arguments.
        state: indices of weights and state among the arguments.
        shardings: shardings of the arguments.

    Returns:
        Sharding of each result, None where the compiler chooses; None without a new state.
    """
    made = jax.eval_shape(function, *leaves)
    old = [leaves[place] for place in state]
    # A step returns the new state first.
    is_same = len(made) >= len(old) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, old, strict=False)
    )
    return [shardings[place] for place in state] + [None] * (len(made) - len(old)) if is_same and old else None


OPTIONS: dict[str, Any] = {"xla_gpu_autotune_level": 0}
"""Options of the GPU compiler: no autotuning, because no device is present to time kernels."""


class Memories(NamedTuple):
    """Memory of a compiled program on a chip.

    Attributes:
        arguments: size of weights, state and data [byte].
        results: size of the results, donated arguments left out [byte].
        temporary: peak memory of temporary values [byte].
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
    """Compile a step for absent chips: peak memory, kernels and collectives of XLA.

    Nothing is run and no chip is needed, only a compiler: for NVIDIA GPUs (`pip install jaxscale[aot]`) or for TPUs
    (`pip install jaxscale[aot-tpu]`). Kernels are not timed, so a compiler with access to a GPU may choose differently.

    Args:
        fn: function of the arguments, such as a training step.
        args: arguments, arrays or `jax.ShapeDtypeStruct`s; leaves other than arrays are static.
        gpu: id of the GPU or TPU in the catalogue of chips.
        n: number of chips [1].
        weights: indices of the arguments with weights and optimiser state, whose memory the results may reuse.
        plan: degrees over the dimension classes of `trace(fn, *args)`; data parallelism over all chips where None.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        Compiled step, with the trace of the step under the plan.

    Raises:
        InputError: the compiler is not installed or lacks a description of the chip, shardings cannot express the plan,
            or the step cannot be traced.
    """
    chip = (hardware or load_hardware())[gpu]
    if chip.id in compile_targets()["slices"]:
        devices = absent_tpus(chip.id, n)
    else:
        # Chips of a node: the innermost level of the network.
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
    """Compile a step for given devices; see `compile_for`.

    Args:
        fn: function of the arguments, such as a training step.
        args: arguments, arrays or `jax.ShapeDtypeStruct`s.
        devices: devices, present or absent.
        weights: indices of the arguments with weights and state.
        plan: degrees over dimension classes; data parallelism over all devices where None.
        name: number and id of the chips.
        capacity: memory of a device [byte].

    Raises:
        InputError: see `compile_for`.
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
        # A step without a new state cannot reuse the memory of the old state.
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
    """Data-parallel plan over all chips."""
    return class_plan(work, data=n_chips, data_class=None if n_chips > 1 else work.tables.class_names[-1])


def memories_of(compiled: Any) -> Memories:
    """Size of arguments, results and temporary values of a compiled program."""
    told = compiled.memory_analysis()
    return Memories(
        arguments=float(told.argument_size_in_bytes),
        # Donated arguments hold the results.
        results=float(told.output_size_in_bytes - told.alias_size_in_bytes),
        temporary=float(told.temp_size_in_bytes),
    )
