"""Kernels and collectives of a compiled program, parsed from HLO text."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxscale.base.errors import InputError

WIDTHS = {"pred": 1.0, "token": 0.0, "opaque": 0.0, "s4": 0.5, "u4": 0.5, "s2": 0.25, "u2": 0.25}
"""Bytes per element of types without bit width in the name [byte]."""

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_ON_CHIP = "S(1)"
_CALLED = {name: re.compile(name + r"=%?([\w.\-]+)") for name in ("body", "calls", "to_apply")}
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Instruction(NamedTuple):
    """Instruction of a computation in HLO text.

    Attributes:
        name: unique name in the program.
        shape: type of the result as text; a tuple of types for a tuple.
        opcode: operation.
        operands: names of the instructions that supply inputs.
        inside: text between the parentheses.
        attributes: text after the operands.
        is_root: whether the result is that of the computation.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    inside: str
    attributes: str
    is_root: bool


class ProgramText(NamedTuple):
    """Parsed text of a compiled program.

    Attributes:
        computations: instructions by name, for each computation by name.
        entry: name of the entry computation.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


def program_text(text: str) -> ProgramText:
    """Parsed program from HLO text.

    Raises:
        InputError: the text holds no program.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            header = _HEADER.match(line)
            # A computation's header has no assignment before the brace.
            if header is not None and " = " not in line.split("{")[0]:
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif current is not None:
            inside, attributes = _split(found[5])
            names = tuple(re.findall(r"%([\w.\-]+)", inside))
            current[found[2]] = Instruction(
                found[2], found[3], found[4], names, inside, attributes, is_root=found[1] is not None
            )
    if not entry:
        raise InputError("the text holds no compiled program; expected that of `Compiled.as_text()`")
    return ProgramText(computations, entry)


def _split(text: str) -> tuple[str, str]:
    """Operands and attributes of an instruction, from the text after the opening parenthesis."""
    depth = 1
    for place, mark in enumerate(text):
        # Types of operands contain parentheses.
        depth += (mark == "(") - (mark == ")")
        if not depth:
            return text[:place], text[place + 1 :]
    return text, ""


def array_bytes(shape: str, in_memory: bool = False) -> list[float]:
    """Bytes of each array of a type, or of each member of a tuple [byte].

    Args:
        shape: type as text.
        in_memory: whether arrays in the memory of a TPU core count as zero.
    """
    return [
        0.0 if in_memory and _ON_CHIP in layout else _width(kind) * math.prod(map(int, filter(None, sizes.split(","))))
        for kind, sizes, layout in _ARRAY.findall(shape)
    ]


def _width(kind: str) -> float:
    bits = re.search(r"\d+", kind)
    # Names of formats state the bits, as bf16 and f8e4m3fn.
    return WIDTHS.get(kind, int(bits[0]) / 8 if bits else 4.0)


def called(instruction: Instruction, how: str) -> str | None:
    """Name of the computation that an instruction calls, by attribute `body`, `calls` or `to_apply`; None if absent."""
    found = _CALLED[how].search(instruction.attributes)
    return found[1] if found else None


def executed(program: ProgramText) -> Iterator[tuple[Instruction, str, float]]:
    """Instructions executed as kernels, with their computation and the number of executions [1].

    Loops multiply by the number of iterations, 1 if unknown to the compiler; the longest branch of a conditional
    counts.
    """
    yield from _of_computation(program, program.entry, 1.0)


def _of_computation(program: ProgramText, name: str, times: float) -> Iterator[tuple[Instruction, str, float]]:
    for one in program.computations.get(name, {}).values():
        if one.opcode == "while":
            turns = _TURNS.search(one.attributes)
            body = called(one, "body")
            if body is not None:
                # The trip count is known to the compiler for loops with a fixed end.
                yield from _of_computation(program, body, times * (float(turns[1]) if turns else 1.0))
        elif one.opcode == "conditional":
            branches = _BRANCHES.search(one.attributes)
            names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
            # Any branch may run: the longest is an upper bound.
            longest = max(names, key=lambda branch: len(program.computations.get(branch, {})), default=None)
            if longest is not None:
                yield from _of_computation(program, longest, times)
        elif one.opcode == "call":
            yield from _of_computation(program, called(one, "to_apply") or "", times)
        elif one.opcode == "async-start":
            yield from _of_computation(program, called(one, "calls") or "", times)
        else:
            yield one, name, times


FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("add-dependency", "opt-barrier", "domain", "copy-done", "async-done", "async-update", "iota"),
)
"""Operations without a kernel."""

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
"""Collective operations; each may be split into a start and an end."""

PRODUCTS = {"dot": "matmul", "convolution": "conv"}
"""Operations with products, with the class of the kernel."""

LIBRARIES = {"cublas": "matmul", "conv": "conv", "fmha": "attention", "softmax": "attention", "matmul": "matmul"}
"""Class of a library kernel, by a word in its name."""

PHASES = (("rematted", "recompute"), ("transpose(", "backward"), ("jvp(", "forward"))
"""Phase by marks of JAX transformations in an operation's name; the first match counts."""


class CompiledKernel(NamedTuple):
    """Kernel of a compiled program.

    Attributes:
        name: name given by the compiler.
        kind: matmul, conv, attention, or other.
        phase: forward, backward, recompute, update.
        launches: launches per step [1].
        bytes: bytes read and written per step, over all launches [byte].
    """

    name: str
    kind: str
    phase: str
    launches: float
    bytes: float


class CompiledCollective(NamedTuple):
    """Collectives of one kind among groups of chips of equal size and stride.

    Attributes:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute.
        members: chips per group; 0 if not in the text [1].
        stride: distance between the first two members [1].
        count: number of values moved per step; a compiler may join several values in one collective [1].
        bytes: bytes reduced, gathered or sent, per chip [byte].
    """

    kind: str
    members: int
    stride: int
    count: float
    bytes: float


def compiled_kernels(program: ProgramText) -> tuple[CompiledKernel, ...]:
    """Kernels of a compiled program, in program order."""
    found = []
    for one, computation, times in executed(program):
        # A start does the work, a done waits.
        if one.opcode in FREE or _collective(one) or one.opcode.endswith("-done"):
            continue
        size = times * _kernel_bytes(program, one, program.computations[computation])
        found.append(CompiledKernel(one.name, _kind(program, one), _phase(one), times, size))
    return tuple(found)


def compiled_collectives(program: ProgramText) -> tuple[CompiledCollective, ...]:
    """Collectives of a compiled program by operation and groups, without scalar collectives."""
    totals: dict[tuple[str, int, int], list[float]] = {}
    for one, computation, times in executed(program):
        kind = _collective(one)
        if kind is None or one.opcode.endswith("-done"):
            continue
        sizes = _moved(one, kind, program.computations[computation])
        # Scalars, as the loss, cost latency alone.
        moved = [size for size in sizes if size > 8.0]
        if moved:
            total = totals.setdefault((kind, *_group(one.attributes)), [0.0, 0.0])
            total[0] += times * len(moved)
            total[1] += times * sum(moved)
    return tuple(CompiledCollective(*key, *total) for key, total in sorted(totals.items()))


def _collective(one: Instruction) -> str | None:
    """Collective operation of an instruction; None for any further instruction."""
    name = one.opcode.removesuffix("-start").removesuffix("-done")
    return name if name in COLLECTIVES else None


def _moved(one: Instruction, kind: str, computation: Mapping[str, Instruction]) -> list[float]:
    """Bytes of each array of a collective: reduced or gathered whole [byte]."""
    operands = [size for name in one.operands if name in computation for size in array_bytes(computation[name].shape)]
    results = array_bytes(one.shape)
    # The result of a start operation contains the operands as well.
    made = results[len(operands) :] if one.opcode.endswith("-start") and len(results) > len(operands) else results
    # Reduced whole, returned in pieces.
    return operands if kind == "reduce-scatter" else made


def _group(attributes: str) -> tuple[int, int]:
    """Members of a group of chips, and the distance of the first two members; zeros if not in the text."""
    chips = _listed(attributes) or _in_order(attributes) or _on_mesh(attributes)
    if not chips:
        return 0, 0
    return len(chips), chips[1] - chips[0] if len(chips) > 1 else 1


def _listed(attributes: str) -> list[int]:
    """First group of a text of the form `{{0,1},{2,3}}`."""
    found = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", attributes)
    return [int(one) for one in found[1].split(",")] if found else []


def _in_order(attributes: str) -> list[int]:
    """First group of a text of the form `[2,4]<=[8]`: groups and members, of chips in the order of permuted axes."""
    found = re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    return _permuted(found[3]).reshape(int(found[1]), int(found[2]))[0].tolist() if found else []


def _on_mesh(attributes: str) -> list[int]:
    """First group of `mesh['a'=2,'b'=4] {'b'}`: chips along mesh axes, or along a factor `'b':(1)2` of an axis."""
    found = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\)(?= \{))? \{([^}]*)\}", attributes)
    if not found:
        return []
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
    chips = _permuted(found[2]) if found[2] else np.arange(np.prod(list(sizes.values())))
    along = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", found[3])
    shape, kept = [], []
    for name, size in sizes.items():
        part = next(((before, count) for axis, before, count in along if axis == name), None)
        # A factor of an axis: (major, kept, minor).
        before, count = (1, 1) if part is None else (int(part[0] or 1), int(part[1] or size))
        kept.append(len(shape) + 1)
        shape += [before, count, size // (before * count)]
    others = [axis for axis in range(len(shape)) if axis not in kept]
    grouped = chips.reshape(shape).transpose([*others, *kept])
    return grouped.reshape(-1, int(np.prod([shape[axis] for axis in kept])))[0].tolist()


def _permuted(text: str) -> np.ndarray:
    """Chips in the order of a text of the form `[8,4]T(1,0)`."""
    sizes = [int(one) for one in text.split("]")[0].strip("[").split(",")]
    order = re.search(r"T\(([\d,]+)\)", text)
    axes = [int(one) for one in order[1].split(",")] if order else list(range(len(sizes)))
    return np.arange(np.prod(sizes)).reshape(sizes).transpose(axes).ravel()


def _phase(one: Instruction) -> str:
    name = re.search(r'op_name="([^"]*)"', one.attributes)
    # Without a mark of a transformation, an operation is the update.
    return next((phase for word, phase in PHASES if name and word in name[1]), "update")


def _kind(program: ProgramText, one: Instruction) -> str:
    """Class of a kernel, by the called library or the product in the fusion."""
    target = re.search(r'custom_call_target="([^"]*)"', one.attributes)
    words = (target[1] if target else "").lower()
    for inner in [one, *_fused(program, one).values()]:
        if inner.opcode in PRODUCTS:
            # The TPU compiler writes matmuls as convolutions, but keeps the original operation name.
            return "matmul" if "dot_general" in inner.attributes else PRODUCTS[inner.opcode]
    if one.opcode == "fusion":
        kind = re.search(r'"kind":"([^"]*)"', one.attributes)
        words += kind[1].lower() if kind else ""
    return next((kind for word, kind in LIBRARIES.items() if word in words), "other")


def _fused(program: ProgramText, one: Instruction) -> Mapping[str, Instruction]:
    """Instructions inside a fusion; empty for a kernel without fusion."""
    return program.computations.get(called(one, "calls") or "", {}) if one.opcode == "fusion" else {}


def _kernel_bytes(program: ProgramText, one: Instruction, computation: Mapping[str, Instruction]) -> float:
    """Bytes read and written per launch of a kernel [byte]."""
    inner = _fused(program, one)
    if not inner:
        read = [_whole(computation[name]) for name in one.operands if name in computation]
        if one.opcode in ("dynamic-slice", "gather", "slice"):
            # A slice reads as much as is written.
            return 2.0 * _whole(one)
        if one.opcode in ("dynamic-update-slice", "scatter"):
            # In place: updates are read and written, the operand stays.
            return 2.0 * sum(read[1:])
        return sum(read) + _whole(one)
    readers = _readers(inner)
    read = sum(_parameter_bytes(part, inner, readers) for part in inner.values() if part.opcode == "parameter")
    roots = [part for part in inner.values() if part.is_root]
    # A fusion with several results has a tuple as root.
    parts = [inner[name] for name in roots[0].operands if name in inner] if roots[0].opcode == "tuple" else roots
    return read + sum(_written(part, inner) for part in parts)


def _whole(one: Instruction) -> float:
    return sum(array_bytes(one.shape, in_memory=True))


def _readers(inner: Mapping[str, Instruction]) -> dict[str, list[Instruction]]:
    """Readers of each instruction of a fusion."""
    readers: dict[str, list[Instruction]] = {}
    for part in inner.values():
        for name in part.operands:
            readers.setdefault(name, []).append(part)
    return readers


def _parameter_bytes(
    part: Instruction, inner: Mapping[str, Instruction], readers: Mapping[str, list[Instruction]]
) -> float:
    """Bytes that a fusion reads of an operand; slices alone for an operand that is only sliced [byte]."""
    total = 0.0
    for name, reader in _uses(part, readers):
        # Of a sliced operand the slice is read; indices are read whole.
        if reader.opcode in ("dynamic-slice", "slice", "gather") and reader.operands[0] == name:
            total += _whole(reader)
        elif not (reader.opcode in ("dynamic-update-slice", "scatter") and reader.operands[0] == name):
            return _whole(part)
    return min(total, _whole(part))


def _uses(part: Instruction, readers: Mapping[str, list[Instruction]]) -> Iterator[tuple[str, Instruction]]:
    """Instructions that read a value directly or through changes of shape, with the operand name in each."""
    for reader in readers.get(part.name, []):
        if reader.opcode in ("bitcast", "reshape"):
            yield from _uses(reader, readers)
        else:
            yield part.name, reader


def _written(part: Instruction, inner: Mapping[str, Instruction]) -> float:
    """Bytes that a fusion writes of a result; the update alone for an in-place update [byte]."""
    while part.opcode in ("bitcast", "reshape", "copy") and part.operands and part.operands[0] in inner:
        part = inner[part.operands[0]]
    if part.opcode == "dynamic-update-slice":
        return _whole(inner[part.operands[1]])
    if part.opcode == "scatter":
        # The updates are the last operand of a scatter.
        return _whole(inner[part.operands[-1]])
    return _whole(part)
