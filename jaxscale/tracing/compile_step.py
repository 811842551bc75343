"""Compilation of a step ahead of time, for chips that need not be there: `js.compile_for`, beside its trace."""

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
"""Kinds of kernels in the summary of a compiled program."""

NAMES = {"matmul": "matmul", "attention": "attention", **dict.fromkeys(("conv", "grouped_conv", "conv3d"), "conv")}
"""Kind of a compiled kernel by kind of the traced kernel; `other` for the rest."""

REDUCED = ("gradients", "statistics", "tensor_forward", "tensor_backward", "scatters")
"""Exchanges of a plan that add up values of several chips."""


FIGURE_COLUMNS = (
    text_column("of one chip", says="{}:"),
    TableColumn("compiled", stays=True),
    TableColumn("traced"),
)
"""Columns of the table of compared figures."""


class ComparedFigure(NamedTuple):
    """A figure by the compiler and by the trace.

    Attributes:
        name: of the figure.
        compiled: by the compiler.
        traced: by the trace under the plan.
    """

    name: str
    compiled: float
    traced: float


@dataclass(frozen=True)
class CompiledStep:
    """Compiled step on a chip among those that share the step.

    Attributes:
        name: number and id of the chips.
        capacity: memory of a chip [byte].
        seconds: time of the compilation [s].
        argument_bytes: weights, state and data [byte].
        result_bytes: results beside donated arguments [byte].
        temporary_bytes: values of the program itself at its fullest point [byte].
        kernels: in the order of the program.
        collectives: by kind and groups.
        work: trace of the step, of the whole batch.
        plan: degrees for which it was compiled.
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
        """Peak memory of a chip, by the compiler [byte]."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory of a chip."""
        return self.peak_bytes <= self.capacity

    def launches(self, *kinds: str) -> float:
        """Kernels of a step, of the given kinds or of all [1]."""
        return float(sum(one.launches for one in self.kernels if not kinds or one.kind in kinds))

    def bytes(self, *kinds: str) -> float:
        """Bytes that kernels read and write in a step, of the given kinds or of all [byte]."""
        return float(sum(one.bytes for one in self.kernels if not kinds or one.kind in kinds))

    def beside_trace(self) -> list[ComparedFigure]:
        """Figures of the compiled step and of its trace under the plan, on a chip."""
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
        """Peak of a chip by the trace: state by its shards, the rest at local sizes [byte]."""
        tables, sizes = self.work.tables, local_sizes(self.work, self.plan)
        shared = np.array([origin in ("weights", "state") for origin in tables.point_origins])
        held = tables.points.values(sizes) / jnp.where(shared, self.plan.shard, 1.0)
        return float(jnp.max(jnp.zeros(len(tables.point_phases)).at[tables.points.row].add(held)))

    def _reduced(self) -> list[ComparedFigure]:
        """Collectives that add up, and that gather."""
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
        """Bytes of the collectives of the given kinds in a step of a chip [byte]."""
        return float(sum(one.bytes for one in self.collectives if one.kind in kinds))

    def parts(self) -> list[str | Table]:
        """Line on the compilation, figures of compiler and trace, and the collectives."""
        capacity = "" if np.isinf(self.capacity) else f" of {self.capacity / 1e9:.1f} GB"
        told = f"compiled for {self.name} in {self.seconds:.1f} s: {self.peak_bytes / 1e9:.2f} GB at the peak{capacity}"
        figures = [(row.name, f"{row.compiled:,.2f}", f"{row.traced:,.2f}") for row in self.beside_trace()]
        collectives = [
            f"{one.count:g} {one.kind} among {one.members} chips, stride {one.stride}: {one.bytes / 1e6:,.2f} MB"
            for one in self.collectives
        ]
        return [told, make_table("", FIGURE_COLUMNS, figures), *collectives]

    def __str__(self) -> str:
        """Figures of compiler and trace, and the collectives."""
        return text_of(self.parts())


AXES = ("copies", "shard", "tensor")
"""Axes of the mesh of a plan: copies of the weights, chips that share a copy, chips that divide classes."""


class ShardedArguments(NamedTuple):
    """Arguments of a step on the devices of a plan.

    Attributes:
        leaves: abstract arrays with their shardings.
        shardings: of the leaves; None on a single device.
    """

    leaves: list[jax.ShapeDtypeStruct]
    shardings: list[Any]


def sharded_arguments(inputs: Sequence[InputAxes], plan: ClassPlan, devices: Sequence[Any]) -> ShardedArguments:
    """Arguments of a step, divided as a plan says.

    Args:
        inputs: leaves of the arguments with the classes of their axes.
        plan: degrees, with a single stage and microbatch, as in the program itself.
        devices: as many as the plan has chips.

    Raises:
        InputError: a plan that shardings alone cannot say.
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
    """Sharding of an array: the batch over all copies, divided classes over `tensor`, weights over `shard` if shared.

    Raises:
        InputError: a class that is not the major factor of its axis, or does not divide evenly.
    """
    parts: list[Any] = [None] * len(one.shape)
    for axis, places in enumerate(one.classes):
        for minor, place in enumerate(places):
            wanted = "tensor" if split[place] else ("copies", "shard") if place == plan.data_class else None
            if wanted is None or ways_of(mesh, wanted) == 1:
                continue
            if minor:
                raise InputError(f"axis {axis} of {one.label} is divided inside a class; expected another split")
            parts[axis] = wanted
    shard = mesh.shape["shard"]
    # One copy among several chips: the longest axis that is still whole is divided.
    free = [axis for axis, size in enumerate(one.shape) if parts[axis] is None and size % shard == 0]
    if one.origin != "data" and shard > 1 and free:
        parts[max(free, key=lambda axis: one.shape[axis])] = "shard"
    for axis, part in enumerate(parts):
        ways = ways_of(mesh, part or ())
        if one.shape[axis] % ways:
            raise InputError(f"axis {axis} of {one.label} has length {one.shape[axis]}; expected a multiple of {ways}")
    return NamedSharding(mesh, PartitionSpec(*parts))


def ways_of(mesh: Mesh, names: str | tuple[str, ...]) -> int:
    """Number of shards into which axes of a mesh divide an axis of an array [1]."""
    return int(np.prod([mesh.shape[name] for name in ((names,) if isinstance(names, str) else names)]))


def output_shardings(
    function: Callable[..., Any], leaves: Sequence[jax.ShapeDtypeStruct], state: Sequence[int], shardings: Sequence[Any]
) -> Any:
    """Shardings of the results of a step: the new state as the old, further results by the compiler.

    Args:
        function: of the leaves, to a list of arrays.
        state: indices of weights and state among the arguments.

    Returns:
        Sharding by result, None where the compiler chooses; None without a new state.
    """
    made = jax.eval_shape(function, *leaves)
    old = [leaves[place] for place in state]
    is_same = len(made) >= len(old) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, old, strict=False)
    )
    return [shardings[place] for place in state] + [None] * (len(made) - len(old)) if is_same and old else None


OPTIONS: dict[str, Any] = {"xla_gpu_autotune_level": 0}
"""Options of the compiler of GPUs: no kernel is timed, since there is no device to time it on."""


class Memories(NamedTuple):
    """Memory of a compiled program on a chip.

    Attributes:
        arguments: weights, state and data [byte].
        results: results beside donated arguments [byte].
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
        weights: indices of the arguments with weights and state of the optimiser, whose memory the step may use
            again for its results.
        plan: degrees over the dimension classes of `trace(fn, *args)`; all chips share the batch where None.

    Returns:
        Compiled step beside the trace of the step under the plan.

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
        devices: devices, present or absent.
        weights: indices of the arguments with weights and state.
        plan: degrees over dimension classes; all devices share the batch where None.
        capacity: memory of a device [byte].

    Returns:
        The compiled step.

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
    """Data-parallel plan over all chips."""
    return class_plan(work, data=n_chips, data_class=None if n_chips > 1 else work.tables.class_names[-1])


def memories_of(compiled: Any) -> Memories:
    """Memory of a compiled program."""
    told = compiled.memory_analysis()
    return Memories(
        arguments=float(told.argument_size_in_bytes),
        results=float(told.output_size_in_bytes - told.alias_size_in_bytes),
        temporary=float(told.temp_size_in_bytes),
    )
