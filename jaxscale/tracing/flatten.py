"""Conversion of a jaxpr to a flat program: calls inlined, loops entered, equal axes merged, phases and scopes named."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from jaxscale.base.errors import InputError
from jaxscale.tracing.axis_rules import BARRIER, CALLS, KINDS, REMATERIALISED, output_axes
from jaxscale.tracing.program import Axis, FlatProgram, Loop, Operation, Phase, Value, Work, loops_of, make_equal
from jaxscale.tracing.work_rules import COLLECTIVES, RULES

WRAPPERS = re.compile(r"\b(?:jvp|transpose|vmap|checkpoint|rematted_computation)\b\(?|[()]")
"""Marks of JAX transformations in a name stack."""


class Place(NamedTuple):
    """Context of operations in a program.

    Attributes:
        loop: enclosing loop.
        phase: phase stated by a JAX transformation or by the enclosing scope; None if data flow decides.
        scope: names of the user, outermost first.
        remat: identity of the rematerialised block; 0 outside.
    """

    loop: Loop | None
    phase: Phase | None
    scope: tuple[str, ...]
    remat: int


class Flattener:
    """Interpreter of jaxprs that builds a flat program.

    Attributes:
        program: program built so far.
        turns: iterations of unbounded loops, by a name in their scope, or by `while` [1].
    """

    def __init__(self, turns: Mapping[str, int]):
        """Args: turns: iterations of unbounded loops, by a name in their scope, or by `while`."""
        self.program = FlatProgram()
        self.turns = turns
        self.blocks = 0
        self.seen: dict[Any, list[Value]] = {}
        self.stacks: set[Value] = set()  # results of loops, one part for each turn
        self.cuts: set[Value] = set()  # parts of arrays that no loop has put together

    def run(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value | None], place: Place
    ) -> list[Value | None]:
        """Append the operations of a jaxpr.

        Args:
            jaxpr: the jaxpr.
            consts: arrays or values of the constants.
            inputs: values of the arguments; None for a literal.
            place: context of the operations.

        Returns:
            Results; None for a literal.
        """
        values: dict[Any, Value | None] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, constant in zip(jaxpr.constvars, consts, strict=True):
            values[variable] = constant if constant is None or isinstance(constant, Value) else self.constant(variable)

        def read(atom: Any) -> Value | None:
            return None if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars], place)
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, variable: Any) -> Value:
        """Value of a constant array that the program closes over."""
        value = self.new_value(variable.aval, None)
        value.origin = "constant"
        self.program.constants.append(value)
        return value

    def new_value(self, aval: Any, loop: Loop | None, axes: Sequence[Axis] | None = None) -> Value:
        """New value with the shape and width of an abstract value."""
        shape = getattr(aval, "shape", ())
        return Value(tuple(axes) if axes is not None else tuple(Axis(size) for size in shape), itemsize(aval), loop)

    def equation(self, equation: Any, inputs: list[Value | None], place: Place) -> Sequence[Value | None]:
        """Append an equation, including the programs called by the equation."""
        name, params = equation.primitive.name, equation.params
        place = within(place, str(equation.source_info.name_stack))
        if KINDS.get(name) == "identity":
            return inputs[: len(equation.outvars)]
        if name in CALLS:
            return self.call(name, params, inputs, place)
        structured = STRUCTURED.get(name)
        if structured is not None:
            return structured(self, equation, inputs, place)
        if name in KINDS:
            return self.light(equation, inputs, place)
        return self.heavy(equation, inputs, place)

    def call(
        self, name: str, params: Mapping[str, Any], inputs: list[Value | None], place: Place
    ) -> Sequence[Value | None]:
        """Inline a called program."""
        body = params[CALLS[name]]
        if name in REMATERIALISED:
            self.blocks += 1
            # The barrier holds for recomputation in the backward pass alone, not for the first forward pass.
            if params.get("differentiated"):
                place = place._replace(remat=self.blocks)
                inputs = [self.behind_barrier(value, place) for value in inputs]
        if name == "shard_map":
            # A program per shard: the body runs once on each, as the turns of an unrolled loop.
            shards = int(np.prod([size for _, size in params["mesh"].shape_tuple]))
            place = place._replace(loop=Loop(place.loop, Axis(shards), True))
            inputs = [
                self.link("unstack", value, aval, place) for value, aval in zip(inputs, body_avals(body), strict=True)
            ]
        results = self.run(open_jaxpr(body), getattr(body, "consts", ()), inputs, place)
        return results

    def behind_barrier(self, value: Value | None, place: Place) -> Value | None:
        """Input of a rematerialised block; a slice of a larger array becomes a separate array."""
        if value is None or value not in self.cuts:
            return value
        output = Value(value.axes, value.itemsize, value.loop)
        self.write(BARRIER, "elementwise", [value], [output], {}, place)
        return output

    def light(self, equation: Any, inputs: list[Value | None], place: Place) -> list[Value]:
        """Append an operation without matmuls: folded into the kernels of its readers, or the end of a fusion."""
        name, params = equation.primitive.name, equation.params
        given = [value for value in inputs if value is not None]
        # Equal operations on equal values are computed once, as by the compiler.
        key = (name, tuple(inputs), _text(equation), place.loop, place.remat)
        if given and key in self.seen:  # constants have equal axes by chance
            return self.seen[key]
        loop = self.hoisted(given, equation, place) if KINDS[name] != "reduction" else place.loop
        outputs = [
            self.new_value(out.aval, loop, output_axes(name, inputs, getattr(out.aval, "shape", ()), params))
            for out in equation.outvars
        ]
        self.write(name, KINDS[name], given, outputs, params, place._replace(loop=loop))
        if not name.startswith(("random", "rng")):
            self.seen[key] = outputs
        return outputs

    def hoisted(self, given: Sequence[Value], equation: Any, place: Place) -> Loop | None:
        """Innermost loop of an operation after hoisting of loop invariants by the compiler."""
        if not given or place.loop is None:
            return place.loop
        deepest = max((value.loop for value in given), key=lambda loop: len(loops_of(loop)))
        # XLA hoists no operation with a result larger than the inputs.
        grows = sum(size_of(out.aval) * itemsize(out.aval) for out in equation.outvars) > sum(
            value.size * value.itemsize for value in given
        )
        return place.loop if grows else deepest

    def heavy(self, equation: Any, inputs: list[Value | None], place: Place) -> list[Value]:
        """Append an operation that is a kernel of its own and reads and writes memory.

        Raises:
            InputError: a primitive without a rule for its work.
        """
        name = equation.primitive.name
        rule = RULES.get(name)
        if rule is None:
            raise unknown_primitive(name, place.scope)
        given = [value for value in inputs if value is not None]
        outputs = [self.new_value(out.aval, place.loop) for out in equation.outvars]
        work = rule(given, outputs, equation.params)
        if name in COLLECTIVES:
            work.kind = COLLECTIVES[name]
        self.write(name, "heavy", given, outputs, equation.params, place, work)
        return outputs

    def link(self, kind: str, value: Value | None, aval: Any, place: Place, axes: Sequence[Axis] | None = None) -> Any:
        """Append an operation that joins values inside and outside a loop, and return the operation's output."""
        if value is None:
            return None
        output = self.new_value(aval, place.loop, axes)
        self.write(kind, kind, [value], [output], {}, place)
        return output

    def write(
        self,
        name: str,
        kind: str,
        inputs: list[Value],
        outputs: list[Value],
        params: Mapping[str, Any],
        place: Place,
        work: Work | None = None,
    ) -> None:
        """Append an operation; an operation after the gradients that is no gradient itself is part of the update."""
        after = any(value.after_backward for value in inputs)
        phase = place.phase or ("update" if after else "forward")
        for output in outputs:
            output.after_backward = after or phase == "backward"
        self.program.operations.append(
            Operation(
                name,
                kind,
                inputs,
                outputs,
                params,
                phase,
                place.scope,
                place.loop,
                work,
                place.remat,
                place.phase is not None,
            )
        )

    def scan(self, equation: Any, inputs: list[Value | None], place: Place) -> list[Any]:
        """Append the body of a scan once, inside a loop."""
        params = equation.params
        body, n_consts, n_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
        turns = int(params["length"])
        # A fully unrolled scan has no stacked values.
        unrolled = params.get("unroll", 1) is True or int(params.get("unroll", 1)) >= turns
        loop = Loop(place.loop, Axis(turns), unrolled)
        inside = place._replace(loop=loop)
        consts, carried, stacked = (
            inputs[:n_consts],
            inputs[n_consts : n_consts + n_carry],
            inputs[n_consts + n_carry :],
        )
        avals = [variable.aval for variable in body.jaxpr.invars]
        carries = [self.carry(value, aval, inside) for value, aval in zip(carried, avals[n_consts:], strict=False)]
        slices = []
        for value, aval in zip(stacked, avals[n_consts + n_carry :], strict=True):
            if value is not None:
                # The leading axis of scanned arrays is the turn.
                make_equal([value.axes[0]], [loop.axis])
            part = self.link("unstack", value, aval, inside, value.axes[1:] if value else None)
            slices.append(part)
            if value is not None and value not in self.stacks:
                self.cuts.add(part)
        results = self.run(body.jaxpr, body.consts, [*consts, *carries, *slices], inside)
        return self.leave(results, carries, [out.aval for out in equation.outvars], loop, place)

    def leave(self, results: list[Any], carries: list[Any], avals: list[Any], loop: Loop, place: Place) -> list[Any]:
        """Results of a loop: final carried values, and stacked outputs of the iterations."""
        outputs = []
        for index, (value, aval) in enumerate(zip(results, avals, strict=True)):
            if value is None:
                outputs.append(None)
            elif index < len(carries):
                # A carry has equal axes in every turn.
                for axis, other in zip(value.axes, carries[index].axes, strict=True):
                    make_equal([axis], [other])
                outer = self.link("carry_out", value, aval, place, value.axes)
                loop.carried[carries[index]] = outer
                outputs.append(outer)
            else:
                outputs.append(self.stack(value, aval, loop, place))
        return outputs

    def stack(self, value: Value, aval: Any, loop: Loop, place: Place) -> Value:
        """Stack of the values of all iterations."""
        stack = self.link("stack", value, aval, place, [loop.axis, *value.axes])
        self.stacks.add(stack)
        return stack

    def carry(self, value: Value | None, aval: Any, inside: Place) -> Value:
        """New value for a loop carry, passed from iteration to iteration."""
        given = [] if value is None else [value]
        output = self.new_value(aval, inside.loop, value.axes if value else None)
        self.write("carry", "carry", given, [output], {}, inside)
        return output

    def while_loop(self, equation: Any, inputs: list[Value | None], place: Place) -> list[Any]:
        """Append the body of a `while` loop once, with the number of iterations stated by the user.

        Raises:
            InputError: no stated number of iterations.
        """
        turns = next((self.turns[name] for name in (*reversed(place.scope), "while") if name in self.turns), None)
        if turns is None:
            where = f" in scope {'/'.join(place.scope)!r}" if place.scope else ""
            raise InputError(
                f"while{where}: the number of turns depends on data; expected it in `turns`, "
                f"such as turns={{'{place.scope[-1] if place.scope else 'while'}': 10}}, or a scan"
            )
        params = equation.params
        loop = Loop(place.loop, Axis(int(turns)), False)
        inside = place._replace(loop=loop)
        start = params["cond_nconsts"]
        consts, carried = inputs[start : start + params["body_nconsts"]], inputs[start + params["body_nconsts"] :]
        body = params["body_jaxpr"]
        avals = [variable.aval for variable in body.jaxpr.invars[len(consts) :]]
        carries = [self.carry(value, aval, inside) for value, aval in zip(carried, avals, strict=True)]
        results = self.run(body.jaxpr, body.consts, [*consts, *carries], inside)
        return self.leave(results, carries, [out.aval for out in equation.outvars], loop, place)

    def cond(self, equation: Any, inputs: list[Value | None], place: Place) -> Sequence[Value | None]:
        """Append the branch of a conditional with the most work, as an upper bound."""
        branches = equation.params["branches"]
        work = []
        for branch in branches:
            start, seen = len(self.program.operations), dict(self.seen)
            self.run(branch.jaxpr, branch.consts, inputs[1:], place)
            # Work is measured by appending the branch, then taken back.
            work.append(sum(map(total_work, self.program.operations[start:])))
            del self.program.operations[start:]
            self.seen = seen
        largest = branches[int(np.argmax(work))]
        return self.run(largest.jaxpr, largest.consts, inputs[1:], place)


STRUCTURED: dict[str, Callable[..., Any]] = {
    "scan": Flattener.scan,
    "while": Flattener.while_loop,
    "cond": Flattener.cond,
}
"""Primitives with bodies that run several times or conditionally."""


def total_work(operation: Operation) -> float:
    """Measure of work to compare branches: flop over all iterations plus bytes of the outputs [1]."""
    flop = operation.work.flop.value if operation.work and operation.work.flop else 0.0
    for loop in loops_of(operation.loop):
        flop *= loop.axis.size
    return flop + sum(value.total_bytes for value in operation.outputs)


def unknown_primitive(name: str, scope: tuple[str, ...]) -> InputError:
    """Error for a primitive without a rule for its work."""
    where = f" in scope {'/'.join(scope)!r}" if scope else ""
    return InputError(
        f"{name}{where}: the work of this primitive is unknown; register it with "
        f"@jaxscale.tracing.custom_call({name!r}), a function of inputs, outputs and parameters that returns its flop"
    )


def within(place: Place, stack: str) -> Place:
    """Context of an equation with a name stack, inside an enclosing context."""
    phase = place.phase
    # Recomputation is marked within the backward pass, the backward pass within jvp.
    if "rematted_computation" in stack:
        phase = "recompute"
    elif "transpose(" in stack:
        phase = "backward"
    elif "jvp(" in stack and phase is None:
        phase = "forward"
    names = tuple(name for name in WRAPPERS.sub("", stack).split("/") if name)
    return place._replace(phase=phase, scope=(*place.scope, *names))


def open_jaxpr(body: Any) -> Any:
    """Open jaxpr of an open or closed jaxpr."""
    return getattr(body, "jaxpr", body)


def body_avals(body: Any) -> list[Any]:
    """Abstract arguments of a jaxpr."""
    return [variable.aval for variable in open_jaxpr(body).invars]


def itemsize(aval: Any) -> float:
    """Bytes per element; 8 for random keys [byte]."""
    try:
        return float(np.dtype(aval.dtype).itemsize)
    except (TypeError, AttributeError):
        return float(getattr(getattr(aval, "dtype", None), "itemsize", 8.0))


def size_of(aval: Any) -> int:
    """Number of elements of an abstract value [1]."""
    return int(np.prod(getattr(aval, "shape", ())))


def _text(equation: Any) -> str:
    """Parameters of an equation as text, literals included, a key for equal operations."""
    literals = [str(atom.val) for atom in equation.invars if isinstance(atom, core.Literal) and np.ndim(atom.val) == 0]
    shapes = [getattr(out.aval, "str_short", str)() for out in equation.outvars]
    return f"{equation.params} {literals} {shapes}"
