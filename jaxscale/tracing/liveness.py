"""Peak memory by liveness analysis: stored values simultaneously in memory, in program order.

A loop is evaluated in its first and in its last iteration. In the first iteration, stacks of earlier loops are complete
and the stacks of the loop hold one iteration; in the last iteration, the reverse holds. Arguments stay in memory.
Results take the memory of donated arguments, and elementwise results that of an input without later readers.
"""

from typing import NamedTuple

import numpy as np

from jaxscale.tracing.axis_rules import BARRIER
from jaxscale.tracing.fusion import FusedKernel, Fusion, is_view
from jaxscale.tracing.program import PHASES, FlatProgram, Loop, Monomial, Value, loops_of

POINTS = 6
"""Number of program points with stored memory figures in a workload, the fullest of each phase included [1]."""


class Allocation(NamedTuple):
    """Memory of a stored value, and its lifetime in the program.

    Attributes:
        value: the value.
        first: index of the operation that computes the value.
        last: index of the last operation that reads the value.
        turn: bytes of one iteration of the enclosing loop [byte].
        whole: bytes of all iterations visible to readers outside the loop [byte].
        own: first and last operation index of the loop that computes the value.
        readers: first and last operation index of the loop of the last reader.
    """

    value: Value
    first: int
    last: int
    turn: Monomial
    whole: Monomial
    own: tuple[int, int]
    readers: tuple[int, int]


class LivePoint(NamedTuple):
    """Live values in memory at a point of a program.

    Attributes:
        phase: phase of the step.
        held: bytes of each value, with the origin: `weights`, `state`, `data`, `constant` or `made` [byte].
    """

    phase: str
    held: list[tuple[str, Monomial]]

    @property
    def value(self) -> float:
        """Memory of all live values at this point of the program [byte]."""
        return sum(term.value for _, term in self.held)


def loop_ranges(fusion: Fusion) -> dict[Loop, tuple[int, int]]:
    """First and last operation index of each loop."""
    ranges: dict[Loop, tuple[int, int]] = {}
    for place, operation in enumerate(fusion.operations):
        for loop in loops_of(operation.loop):
            first, _ = ranges.get(loop, (place, place))
            ranges[loop] = (first, place)
    return ranges


def allocations(program: FlatProgram, fusion: Fusion) -> list[Allocation]:
    """Memory and lifetime of every value computed by kernels, except results in donated arguments."""
    ranges = loop_ranges(fusion)
    reads: dict[Value, list[FusedKernel]] = {}
    for kernel in fusion.kernels:
        for value in kernel.reads:
            reads.setdefault(value, []).append(kernel)
    results = {fusion.base(value) for value in program.outputs if value is not None}
    # Donated arguments: new weights and state take the place of the old.
    spare = [(value.size, value.itemsize) for value in program.inputs if value.origin in ("weights", "state")]
    end, found = len(fusion.operations), []
    for kernel in fusion.kernels:
        for value in kernel.stores:
            if value in results and (value.size, value.itemsize) in spare:
                spare.remove((value.size, value.itemsize))
            elif is_cut_early(value, fusion):
                begin = min(other.position for source in kernel.reads for other in reads[source])
                found.append(_early(value, begin, kernel.position, reads.get(value, []), ranges))
            elif not is_scratch(value, fusion):
                found.append(_allocation(value, kernel.position, reads.get(value, []), ranges, end, value in results))
    for loop, (_, last) in ranges.items():
        for inner, outer in loop.carried.items():
            place = fusion.index[fusion.producers[inner]]
            one = _allocation(inner, place, reads.get(inner, []), ranges, end, outer in results)
            # A carry lives until the loop ends, and as long as the value behind the loop is read.
            after = max([last, *(kernel.position for kernel in reads.get(outer, ()))])
            found.append(one._replace(last=max(one.last, after)))
    return in_place(found, fusion)


IN_PLACE = frozenset({"elementwise", "scatter", "copy"})
"""Kernels that may overwrite an input, by `FusedKernel.kind`."""


def in_place(found: list[Allocation], fusion: Fusion) -> list[Allocation]:
    """Allocations shortened where kernels overwrite inputs without later readers."""
    by_value = {one.value: place for place, one in enumerate(found)}
    found = list(found)
    for kernel in fusion.kernels:
        if kernel.kind not in IN_PLACE:
            continue
        free = [value for value in kernel.reads if value in by_value and found[by_value[value]].last == kernel.position]
        for stored in kernel.stores:
            for value in free:
                # An overwritten buffer has the size of the result.
                if value.loop is stored.loop and value.size * value.itemsize == stored.size * stored.itemsize:
                    place = by_value[value]
                    found[place] = found[place]._replace(last=kernel.position - 1)
                    free.remove(value)
                    break
    return found


def is_scratch(value: Value, fusion: Fusion) -> bool:
    """Whether a value needs no memory of its own: written directly into the stack of a rolled loop, or over a carry."""
    # Fused kernels write into a stack directly; heavy kernels need a copy.
    folded = fusion.producers[value].kind != "heavy"
    readers = fusion.readers.get(value, ())
    stacked = any(reader.kind == "stack" and not is_view(reader) for reader in readers)
    carried = any(reader.kind == "carry_out" for reader in readers)
    return folded and (stacked or carried)


def is_cut_early(value: Value, fusion: Fusion) -> bool:
    """Whether a value is a slice of an array that is cut at once for all iterations of an unrolled loop."""
    return fusion.producers[value].name == BARRIER and value.loop is not None and value.loop.unrolled


def _early(
    value: Value, first: int, place: int, readers: list[FusedKernel], ranges: dict[Loop, tuple[int, int]]
) -> Allocation:
    """Memory of slices cut by the first reader of an array and freed by a later loop, iteration by iteration."""
    assert value.loop is not None
    begin, _ = ranges[value.loop]
    last = max([place, *(kernel.position for kernel in readers)])
    turn = Monomial(value.itemsize, list(value.axes))
    whole = Monomial(value.itemsize, [*value.axes, value.loop.axis])
    return Allocation(value, first, last, turn, whole, (begin - 1, begin - 1), ranges[value.loop])


def _allocation(
    value: Value, first: int, readers: list[FusedKernel], ranges: dict[Loop, tuple[int, int]], end: int, is_result: bool
) -> Allocation:
    inside = set(loops_of(value.loop))
    last, range_of_last = first, (end, end)
    outermost: Loop | None = None  # outermost loop that a reader has left
    for reader in readers:
        chain = loops_of(reader.loop)
        foreign = [loop for loop in chain if loop not in inside]
        use = ranges[foreign[-1]][1] if foreign and not _same_turns(foreign, value) else reader.position
        if use >= last:
            last = use
            range_of_last = ranges[foreign[-1]] if foreign else (end, end)
        left = [loop for loop in loops_of(value.loop) if loop not in chain]
        if left and (outermost is None or len(left) > len(loops_of(value.loop)) - len(loops_of(outermost))):
            outermost = left[-1]
    turn = Monomial(value.itemsize, list(value.axes))
    if outermost is None:
        return Allocation(value, first, end if is_result else last, turn, turn, (end, end), (end, end))
    turns = []
    for loop in loops_of(value.loop):
        turns.append(loop.axis)
        if loop is outermost:
            break
    whole = Monomial(value.itemsize, [*value.axes, *turns])
    own = ranges[outermost]
    return Allocation(value, first, end if is_result else last, turn, whole, own, range_of_last)


def _same_turns(foreign: list[Loop], value: Value) -> bool:
    """Whether a second loop unstacks the values, one value per iteration."""
    return bool(value.loop) and foreign[0].axis.size == value.loop.axis.size


def live_points(program: FlatProgram, fusion: Fusion) -> list[LivePoint]:
    """Points of largest memory in a program: of each phase, and overall.

    Returns:
        Points, the fullest first; empty without stored values.
    """
    found, end = allocations(program, fusion), len(fusion.operations)
    # (first or last turns, operations): differences, summed below.
    held = np.zeros((2, end + 2))
    for one in found:
        for state in (0, 1):
            for first, last, amount in spans(one, state):
                held[state, first] += amount.value
                held[state, last + 1] -= amount.value
    held = np.cumsum(held, axis=1)[:, :end]
    fixed = [
        # Arguments and constants stay in memory throughout.
        (value.origin, Monomial(value.itemsize, list(value.axes)))
        for value in (*program.inputs, *program.constants)
    ]
    places = fullest_places(held, fusion)
    points = []
    for state, place in places:
        now = [
            (one.value.origin, amount)
            for one in found
            for first, last, amount in spans(one, state)
            if first <= place <= last
        ]
        points.append(LivePoint(fusion.operations[place].phase, [*fixed, *now]))
    return sorted(points, key=lambda point: -point.value)


def spans(one: Allocation, state: int) -> list[tuple[int, int, Monomial]]:
    """Operation ranges in which a value occupies memory, with the bytes [byte].

    Args:
        one: memory and lifetime of the value.
        state: 0 for the first iterations of loops, 1 for the last.
    """
    if one.whole is one.turn:
        return [(one.first, one.last, one.turn)]
    # First turns: stacks of the loop hold a turn, stacks of the readers are whole; last: reverse.
    early, late = (one.turn, one.whole) if state == 0 else (one.whole, one.turn)
    unrolled = one.value.loop is not None and one.value.loop.unrolled
    inside = (one.first, min(one.own[1], one.last), early if unrolled else one.whole)
    between = (one.own[1] + 1, min(one.readers[0] - 1, one.last), one.whole)
    reading = (max(one.readers[0], one.own[1] + 1), one.last, late if unrolled else one.whole)
    return [(first, last, amount) for first, last, amount in (inside, between, reading) if first <= last]


def fullest_places(held: np.ndarray, fusion: Fusion) -> list[tuple[int, int]]:
    """Points of largest memory, of each phase in first and last iterations: pairs of state and operation index.

    Args:
        held: memory in first and last iterations [byte], [state, operation].
        fusion: kernels of the program.
    """
    if not held.size:
        return []
    phases = np.array([PHASES.index(operation.phase) for operation in fusion.operations])
    best = {}
    for state in (0, 1):
        for phase in range(len(PHASES)):
            # Operations of further phases count as below empty.
            within = np.where(phases == phase, held[state], -1.0)
            place = int(np.argmax(within))
            if within[place] > 0:
                best[(state, place)] = within[place]
    return sorted(best, key=lambda key: -best[key])[:POINTS]
