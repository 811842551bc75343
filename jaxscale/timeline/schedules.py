"""Pipeline schedules by discrete events: order of the operations of each rank, start and end of each operation.

References: Huang et al. 2019, arXiv 1811.06965 (GPipe); Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (1F1B,
interleaved stages); Qi et al. 2023, arXiv 2401.10241, section 2 (ZB-H1); DeepSeek-AI 2024, arXiv 2412.19437, figure 5,
and the program DualPipe (2025).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxscale.base.errors import InputError

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "backward", "input gradient", "weight gradient"
"""Operations. A backward pass consists of an input gradient and a weight gradient, fused or separate."""


class StagePass(NamedTuple):
    """Pass of a microbatch through a virtual stage.

    Attributes:
        kind: `forward`, `backward`, `input gradient` or `weight gradient`.
        microbatch: index of the microbatch within its direction, from 0.
        stage: virtual stage, in the order of the forward pass, from 0.
        direction: 0, or 1 for microbatches of DualPipe that enter at the last rank.
    """

    kind: str
    microbatch: int
    stage: int
    direction: int = 0


class Event(NamedTuple):
    """Operation of a rank with start and end times.

    Attributes:
        rank: pipeline rank that runs the operation.
        operation: the operation.
        start: start time [s].
        end: end time [s].
    """

    rank: int
    operation: StagePass
    start: float
    end: float


Orders = list[list[tuple[StagePass, ...]]]
"""Operations of each rank in order; the operations of one tuple start together (a forward and a backward pass)."""


def operation_orders(schedule: str, pp: int, vpp: int, n_microbatches: int) -> Orders:
    """Order of the operations of each pipeline rank.

    Args:
        schedule: `gpipe`, `1f1b`, `interleaved`, `zero-bubble` (ZB-H1) or `dualpipe`.
        pp: pipeline ranks [1].
        vpp: virtual stages per rank; 1 unless interleaved [1].
        n_microbatches: microbatches per step [1].

    Raises:
        InputError: DualPipe with fewer than two microbatches per rank or an odd number of microbatches.
    """
    if schedule == "dualpipe" and pp > 1:
        if n_microbatches % 2 or n_microbatches < 2 * pp:
            raise InputError(
                f"dualpipe has no schedule for n_microbatches = {n_microbatches} and pp = {pp};"
                f" expected an even number of at least {2 * pp}"
            )
        return [_dual_pipe(rank, pp, n_microbatches) for rank in range(pp)]
    if schedule == "zero-bubble":
        orders = [_zero_bubble(rank, pp, n_microbatches) for rank in range(pp)]
    else:
        warm = n_microbatches * vpp if schedule == "gpipe" else None
        orders = [_one_forward_one_backward(rank, pp, vpp, n_microbatches, warm) for rank in range(pp)]
    return [[(operation,) for operation in order] for order in orders]


def _one_forward_one_backward(rank: int, pp: int, vpp: int, n: int, warm: int | None) -> list[StagePass]:
    """1F1B order: forward passes that fill the pipeline, alternating forward and backward passes, backward passes.

    With interleaved stages, groups of pp microbatches pass through each virtual stage in turn.
    """
    forward, backward = [], []
    for place in range(n * vpp):
        group, within = divmod(place, pp * vpp)
        chunk, member = divmod(within, pp)
        if vpp == 1:
            chunk, group, member = 0, 0, place
        microbatch = group * pp + member
        forward.append(StagePass(FORWARD, microbatch, chunk * pp + rank))
        backward.append(StagePass(BACKWARD, microbatch, (vpp - 1 - chunk) * pp + rank))
    if warm is None:
        # Interleaved warm-up count: Narayanan et al. 2021.
        warm = pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp
    warm = min(warm, len(forward))
    order = forward[:warm]
    for place in range(warm, len(forward)):
        order += [forward[place], backward[place - warm]]
    return order + backward[len(forward) - warm :]


def _zero_bubble(rank: int, pp: int, n: int) -> list[StagePass]:
    """ZB-H1 order: on rank r, weight gradients lag r microbatches behind input gradients."""
    warm = min(n, pp - rank)
    order = [StagePass(FORWARD, microbatch, rank) for microbatch in range(warm)]
    for microbatch in range(n):
        order.append(StagePass(INPUT_GRADIENT, microbatch, rank))
        if microbatch >= rank:
            order.append(StagePass(WEIGHT_GRADIENT, microbatch - rank, rank))
        if warm + microbatch < n:
            order.append(StagePass(FORWARD, warm + microbatch, rank))
    return order + [StagePass(WEIGHT_GRADIENT, microbatch, rank) for microbatch in range(max(0, n - rank), n)]


class _DualRank:
    """Operations of one rank of DualPipe, in order; phase 0 enters from the nearer end of the pipeline."""

    def __init__(self, rank: int, pp: int) -> None:
        self.order: list[tuple[StagePass, ...]] = []
        self._rank, self._pp, self._is_second_half = rank, pp, rank >= pp // 2
        self._made = {FORWARD: [0, 0], BACKWARD: [0, 0]}
        self._waiting: list[StagePass] = []

    def _next(self, pass_: str, phase: int) -> StagePass:
        direction = phase ^ self._is_second_half
        stage = self._pp - 1 - self._rank if direction else self._rank
        microbatch = self._made[pass_][phase]
        self._made[pass_][phase] += 1
        return StagePass(pass_, microbatch, stage, int(direction))

    def forward(self, phase: int) -> None:
        self.order.append((self._next(FORWARD, phase),))

    def backward(self, phase: int, is_split: bool = False) -> None:
        operation = self._next(BACKWARD, phase)
        if is_split:
            self._waiting.append(operation._replace(kind=WEIGHT_GRADIENT))
            operation = operation._replace(kind=INPUT_GRADIENT)
        self.order.append((operation,))

    def weights(self) -> None:
        self.order.append((self._waiting.pop(0),))

    def both(self, forward: int, backward: int) -> None:
        self.order.append((self._next(FORWARD, forward), self._next(BACKWARD, backward)))


def _dual_pipe(rank: int, pp: int, n: int) -> list[tuple[StagePass, ...]]:
    """DualPipe order: microbatches enter at each end; forward passes overlap backward passes of the reverse direction.

    The program has eight steps: fill, fill from each end, split backward passes, the steady state, and four steps that
    drain the pipeline.
    """
    from_end = min(rank, pp - 1 - rank)
    inner, ends = pp // 2 - from_end - 1, from_end + 1
    chip = _DualRank(rank, pp)
    for _ in range(2 * inner):
        chip.forward(0)
    for _ in range(ends):
        chip.forward(0)
        chip.forward(1)
    for _ in range(inner):
        chip.backward(1, is_split=True)
        chip.weights()
        chip.forward(1)
    for turn in range(n // 2 - pp + ends):
        if turn == 0 and inner == 0:  # the middle ranks have no backward pass to run beside the first
            chip.forward(0)
            chip.backward(1)
        else:
            chip.both(0, 1)
        chip.both(1, 0)
    for _ in range(inner):
        chip.backward(1)
        chip.both(1, 0)
    for turn in range(ends):
        # From the middle of the drain on, weight gradients wait to fill the bubble.
        chip.backward(1, is_split=turn >= (ends + 1) // 2)
        chip.backward(0, is_split=turn >= ends // 2)
    for _ in range(inner):
        chip.weights()
        chip.backward(0, is_split=True)
    for _ in range(ends):
        chip.weights()
    return chip.order


def _needed(operation: StagePass, n_stages: int) -> tuple[str, int, int, int] | None:
    """Pass that must end before an operation starts: kind, microbatch, stage, direction; None for the first pass."""
    kind, microbatch, stage, direction = operation
    if kind == FORWARD:
        return (FORWARD, microbatch, stage - 1, direction) if stage else None
    if kind == WEIGHT_GRADIENT:
        return (BACKWARD, microbatch, stage, direction)
    if stage < n_stages - 1:
        return (BACKWARD, microbatch, stage + 1, direction)
    return (FORWARD, microbatch, stage, direction)


def simulated(orders: Orders, n_stages: int, duration: Callable[[StagePass], float]) -> list[Event]:
    """Simulate a schedule: an operation starts once the rank is free and the inputs have arrived.

    Args:
        orders: operations of each rank in order.
        n_stages: virtual stages of the pipeline [1].
        duration: function from an operation to the duration [s].

    Returns:
        Events, in order on each rank.
    """
    ended: dict[tuple[str, int, int, int], float] = {}
    free, place = [0.0] * len(orders), [0] * len(orders)
    events: list[Event] = []
    moving = True
    while moving:
        moving = False
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                together = order[place[rank]]
                needs = [need for operation in together if (need := _needed(operation, n_stages)) is not None]
                if any(need not in ended for need in needs):
                    break
                start = max([free[rank], *(ended[need] for need in needs)])
                free[rank] = _run(rank, together, start, duration, events)
                for operation in together:
                    # The preceding stage needs only the input gradient, so its end counts as the end of the backward.
                    kind = BACKWARD if operation.kind == INPUT_GRADIENT else operation.kind
                    ended[(kind, *operation[1:])] = free[rank]
                place[rank] += 1
                moving = True
    if any(at < len(order) for at, order in zip(place, orders, strict=True)):
        raise AssertionError("operations of a pipeline wait for each other")
    return events


def _run(
    rank: int,
    together: Sequence[StagePass],
    start: float,
    duration: Callable[[StagePass], float],
    events: list[Event],
) -> float:
    """Append the events of operations that start together, drawn in sequence; return the common end [s]."""
    for operation in together:
        end = start + duration(operation)
        events.append(Event(rank, operation, start, end))
        start = end
    return start


def makespan(events: Sequence[Event]) -> float:
    """Time from the start of the step to the last end [s]."""
    return max(event.end for event in events)
