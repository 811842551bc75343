r"""Fusion: grouping of the operations of a flat program into kernels, with the values stored between kernels.

Heavy operations read and write memory. Elementwise work is folded into the kernels that read its result. The result is
stored if a heavy operation, a loop or the end of the program reads the result, or if recomputation by n readers would
read at least as many bytes as storing, $n R \ge R + (1 + n) S$, with R bytes of sources and S bytes of the result. A
reduction ends a fusion. Fusions over equal axes that share a large source, or feed each other, form one kernel. A
transposition is free where a matmul reads the result, as are the values of an unrolled loop; a rolled loop fills,
writes and reads stacks.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from jaxscale.tracing.axis_rules import BARRIER
from jaxscale.tracing.program import FlatProgram, Loop, Monomial, Operation, Phase, Value, bytes_of, loops_of

FOLDED = frozenset({"elementwise", "selection", "layout", "stack", "unstack"})
"""Operations that are folded into their readers, by `Operation.kind`."""


COSTLY = frozenset({"tanh", "erf", "erf_inv", "lgamma", "digamma"})
"""Functions so expensive that a compiler stores the result for a second reader."""


@dataclass(eq=False)
class FusedKernel:
    """Kernel: operations of a single launch.

    Attributes:
        kind: `matmul`, `conv`, ..., of a heavy operation; else `elementwise`, `reduction`, `gather` or `copy`.
        roots: operations whose results the kernel writes.
        reads: bytes read of each stored value, over all iterations [byte].
        written: bytes written, over all iterations [byte].
        loop: loop that contains the kernel.
        phase: phase of the step.
        scope: name scopes of the user.
        position: index of the last root in the program.
        stores: values that the kernel writes.
    """

    kind: str
    roots: list[Operation]
    reads: dict[Value, Monomial]
    written: list[Monomial]
    loop: Loop | None
    phase: Phase
    scope: tuple[str, ...]
    position: int
    stores: list[Value] = field(default_factory=list)


def is_view(operation: Operation) -> bool:
    """Whether an operation moves no bytes: a change of layout, or a stack of values of an unrolled loop."""
    if operation.kind == "stack":
        return bool(operation.inputs[0].loop and operation.inputs[0].loop.unrolled)
    if operation.kind == "unstack":
        return bool(operation.loop and operation.loop.unrolled)
    return operation.kind == "layout"


class Fusion:
    """Kernels of a flat program, and the values stored in memory.

    Attributes:
        producers: operation that computes each value.
        stored: values in memory.
        kernels: kernels in program order.
    """

    def __init__(self, program: FlatProgram):
        """Args: program: the flat program."""
        self.operations = program.operations
        self.producers: dict[Value, Operation] = {out: op for op in self.operations for out in op.outputs}
        self.readers: dict[Value, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            for value in operation.inputs:
                self.readers[value].append(operation)
        self.index = {operation: place for place, operation in enumerate(self.operations)}
        self.stored = {*program.inputs, *program.constants}
        self.force(program)
        self.sources: dict[Value, dict[Value, Monomial]] = {}
        self.level: dict[Value, int] = defaultdict(int)
        self.follow()
        self.choose()
        # Stored values change sources and chains.
        self.follow()
        self.kernels = sorted([*self.heavy_kernels(), *self.fused_kernels()], key=lambda kernel: kernel.position)

    def base(self, value: Value) -> Value:
        """Value with the same elements before changes of layout."""
        while value not in self.stored:
            producer = self.producers.get(value)
            if producer is None or not is_view(producer):
                break
            value = producer.inputs[0]
        return value

    def force(self, program: FlatProgram) -> None:
        """Mark as stored inputs and outputs of heavy operations, carried values of loops, and results of a program."""
        for operation in self.operations:
            if operation.kind in ("heavy", "reduction", "carry"):
                self.stored.update(operation.outputs)
            if operation.kind == "stack" and not is_view(operation):
                self.stored.update(operation.outputs)
                self.stored.add(self.base(operation.inputs[0]))
            if operation.kind in ("heavy", "carry", "carry_out"):
                self.stored.update(self.base(value) for value in operation.inputs)
            # A block behind a barrier recomputes from stored inputs.
            if operation.kind == "carry_out" or operation.name == BARRIER:
                self.stored.update(operation.outputs)
        self.stored.update(self.base(value) for value in program.outputs if value is not None)

    def choose(self) -> None:
        """Mark values as stored where storing costs less traffic than recomputation, from the last operation on."""
        sinks: dict[Value, set[object]] = {}
        # Last values first: the number of stored readers must be known.
        for operation in reversed(self.operations):
            for output in operation.outputs:
                reached: set[object] = set()
                for reader in self.readers.get(output, ()):
                    reached |= self._reached(reader, sinks)
                sinks[output] = reached
                if operation.kind in FOLDED and output not in self.stored and not is_view(operation):
                    if self._worth(operation, output, len(reached)):
                        self.stored.add(output)

    def _worth(self, operation: Operation, output: Value, readers: int) -> bool:
        """Whether storing a value costs less traffic than recomputation by each reader."""
        read, own = sum(one.value for one in self.sources[output].values()), output.total_bytes
        # n R >= R + (1 + n) S, see the module.
        return readers > 1 and (operation.name in COSTLY or readers * read >= read + (1 + readers) * own)

    def _reached(self, reader: Operation, sinks: dict[Value, set[object]]) -> set[object]:
        if reader.kind in FOLDED and not any(output in self.stored for output in reader.outputs):
            return set().union(*(sinks.get(output, set()) for output in reader.outputs))
        if reader.kind in FOLDED or reader.kind == "reduction":
            domain = reader.inputs[0].size if reader.kind == "reduction" else reader.outputs[0].size
            # Readers of equal loop, domain and phase are a single kernel.
            return {(reader.loop, domain, reader.phase, reader.kind == "reduction")}
        return {reader}

    def follow(self) -> None:
        """Find the stored sources of every value, and the longest chain of kernels before each value."""
        self.level.clear()
        for operation in self.operations:
            if operation.kind not in (*FOLDED, "reduction"):
                for value in operation.outputs:
                    self.level[value] = 1 + max((self.level[self.base(one)] for one in operation.inputs), default=-1)
                continue
            sources = self.read_by(operation)
            for output in operation.outputs:
                self.sources[output] = sources
                self.level[output] = self._level(operation, output, sources)

    def read_by(self, operation: Operation) -> dict[Value, Monomial]:
        """Bytes that a folded operation reads from each stored value [byte]."""
        sources: dict[Value, Monomial] = {}
        for place, value in enumerate(operation.inputs):
            if value in self.stored:
                part = operation.kind == "unstack" or (operation.kind == "selection" and place == 0)
                found = {value: self.bytes_read(value, operation.outputs[0] if part else value, operation.loop)}
            else:
                found = self.sources.get(value, {})
                if operation.kind == "selection" and place == 0:  # only the selected part is computed
                    found = {one: self._selected(one, term, value, operation) for one, term in found.items()}
            for source, term in found.items():
                kept = sources.get(source)
                # A kernel reads a source once: the largest need counts.
                sources[source] = term if kept is None or term.value > kept.value else kept
        return sources

    def _selected(self, source: Value, term: Monomial, whole: Value, operation: Operation) -> Monomial:
        """Bytes read from a source if a slice of its successor suffices."""
        part = operation.outputs[0]
        if source.size == whole.size:
            return self.bytes_read(source, part, operation.loop)
        # A slice needs an equal share of the source.
        return Monomial(term.factor * min(part.size / max(whole.size, 1), 1.0), term.axes)

    def bytes_read(self, value: Value, part: Value, loop: Loop | None) -> Monomial:
        """Bytes that a reader in a loop reads from a value, over all iterations [byte]."""
        inner, outer = loops_of(loop), loops_of(part.loop)
        loops = inner if len(inner) >= len(outer) else outer
        return Monomial(value.itemsize, [*part.axes, *(one.axis for one in loops)])

    def _level(self, operation: Operation, output: Value, sources: dict[Value, Monomial]) -> int:
        """Longest chain of kernels before the kernel that writes a value."""
        domain = operation.inputs[0].size if operation.kind == "reduction" else output.size
        longest = 0
        for source in sources:
            producer = self.producers.get(source)
            if producer is None:
                continue
            # Elementwise work over an equal domain joins the kernel of the source.
            feeds = producer.kind in FOLDED and source.size == domain and source.loop is operation.loop
            longest = max(longest, self.level[source] + (0 if feeds else 1))
        return longest

    def heavy_kernels(self) -> list[FusedKernel]:
        """Kernels of heavy operations, and kernels that fill the stacks of rolled loops."""
        kernels = []
        for operation in self.operations:
            if operation.kind == "heavy":
                kernels.append(self._heavy_kernel(operation))
            elif operation.kind == "stack" and not is_view(operation):
                kernels.extend(self._stack_kernels(operation))
        return kernels

    def _heavy_kernel(self, operation: Operation) -> FusedKernel:
        work = operation.work
        assert work is not None
        # An operand in two layouts is read once.
        bases = {self.base(value): value for value in operation.inputs}
        if work.read is None:
            reads = {base: self.bytes_read(base, value, operation.loop) for base, value in bases.items()}
        else:
            others = [Monomial(0.0, [])] * (len(bases) - len(work.read))
            reads = dict(zip(bases, [*work.read, *others], strict=False))
        written = work.written if work.written is not None else [bytes_of(out) for out in operation.outputs]
        return self._kernel(work.kind, [operation], reads, written, operation.outputs)

    def _stack_kernels(self, operation: Operation) -> list[FusedKernel]:
        """Kernels that fill a stack with zeros, and that copy results of heavy operations into the stack."""
        stack = operation.outputs[0]
        kernels = [self._kernel("copy", [operation], {}, [bytes_of(stack)], [stack])]
        inner = self.base(operation.inputs[0])
        producer = self.producers.get(inner)
        if producer is not None and producer.kind == "heavy":
            # A heavy kernel writes a separate result, copied into the stack.
            copy = self._kernel("copy", [operation], {inner: bytes_of(inner)}, [bytes_of(inner)], [])
            copy.loop = inner.loop
            kernels.append(copy)
        return kernels

    def fused_kernels(self) -> list[FusedKernel]:
        """Kernels of elementwise work and reductions, merged over equal axes."""
        buckets: dict[tuple[Loop | None, int, int, str], list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation.kind not in (*FOLDED, "reduction"):
                continue
            if (operation.kind == "stack" and not is_view(operation)) or not any(
                out in self.stored for out in operation.outputs
            ):
                continue
            output = operation.outputs[0]
            # A reduction works over the input.
            domain = operation.inputs[0].size if operation.kind == "reduction" else output.size
            buckets[(operation.loop, domain, self.level[output], operation.phase)].append(operation)
        return [
            self._fused_kernel(roots)
            for (_, domain, *_), found in buckets.items()
            for roots in self._merged(found, domain)
        ]

    def _merged(self, roots: list[Operation], domain: int) -> list[list[Operation]]:
        """Groups of roots over equal axes that share a large source or feed each other."""
        groups: list[tuple[set[Value], list[Operation]]] = []
        for root in roots:
            # Scalars and vectors do not join kernels.
            large = {source for source in self.sources[root.outputs[0]] if 2 * source.size >= domain}
            touched = {*large, *root.outputs}
            joined, others = [root], []
            for values, members in groups:
                if values & touched:
                    touched |= values
                    joined = [*members, *joined]
                else:
                    others.append((values, members))
            groups = [*others, (touched, joined)]
        return [members for _, members in groups]

    def _fused_kernel(self, roots: list[Operation]) -> FusedKernel:
        outputs = [output for root in roots for output in root.outputs if output in self.stored]
        reads: dict[Value, Monomial] = {}
        for root in roots:
            for source, term in self.sources[root.outputs[0]].items():
                if source not in outputs and (source not in reads or term.value > reads[source].value):
                    reads[source] = term
        kinds = {root.kind for root in roots}
        gathers = any(root.name == "gather" for root in roots)
        kind = "reduction" if "reduction" in kinds else "gather" if gathers else "elementwise"
        return self._kernel(kind, roots, reads, [bytes_of(output) for output in outputs], outputs)

    def _kernel(
        self,
        kind: str,
        roots: list[Operation],
        reads: dict[Value, Monomial],
        written: list[Monomial],
        stores: list[Value],
    ) -> FusedKernel:
        last = roots[-1]
        position = max(self.index[root] for root in roots)
        return FusedKernel(kind, roots, reads, written, last.loop, last.phase, last.scope, position, list(stores))
