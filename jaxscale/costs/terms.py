"""Terms of a step, one row each: kind, colour and meaning, from which power, reports and the order of a step follow."""

from typing import Literal, NamedTuple

Kind = Literal["compute", "memory", "network", "host"]

KINDS: tuple[Kind, ...] = ("compute", "memory", "network", "host")
"""Activities of a chip: arithmetic, streaming from memory, an exposed collective or a wait for other chips inside one,
a wait for the host."""


class Term(NamedTuple):
    """One cost term of a step.

    Attributes:
        name: field of `StepTime`; `term_<name>_s` in tables.
        kind: what a chip does meanwhile, one of `KINDS`.
        colour: of its bar in figures, by the names of `report.style`.
        hatch: tells terms of one colour apart.
        meaning: in a few words.
    """

    name: str
    kind: Kind
    colour: str
    hatch: str
    meaning: str


TERMS = (
    Term("matmul", "compute", "blue", "", "weight matmuls of layers, forward and backward"),
    Term("attention", "compute", "sky", "", "attention core, and scans of state-space layers"),
    Term("memory_bound", "memory", "green", "", "norms, activations, residuals, casts, gradient accumulation"),
    Term("head", "compute", "sky", "///", "logits and cross-entropy, matmul and traffic"),
    Term("recompute", "compute", "purple", "", "forward work done again"),
    Term("kernel_gaps", "host", "grey", "", "gaps between the small kernels of mixture layers"),
    Term("host", "host", "grey", "///", "waiting for the host to launch"),
    Term("tensor_parallel", "network", "orange", "", "exposed collectives of tp"),
    Term("context_parallel", "network", "orange", "///", "exposed key/value ring"),
    Term("expert_parallel", "network", "orange", "...", "exposed all-to-alls"),
    Term("data_parallel", "network", "red", "", "exposed gradient reduction and parameter gathers"),
    Term("pipeline_bubble", "network", "yellow", "", "fill and drain of the pipeline"),
    Term("pipeline_imbalance", "network", "yellow", "///", "waiting for the busiest stage"),
    Term("pipeline_transfer", "network", "yellow", "...", "exposed sends between stages"),
    Term("optimizer", "memory", "green", "///", "parameter update"),
    Term("bookkeeping", "host", "grey", "...", "host time of sends and receives, and once per step"),
    Term("straggler", "network", "ink", "", "waiting for the slowest node"),
)
"""Terms in the order of `StepTime`. Bubbles and stragglers are waited for inside a collective."""

TERM_NAMES = tuple(term.name for term in TERMS)


def names_of_kind(*kinds: Kind) -> tuple[str, ...]:
    """Names of the terms of some kinds, in order."""
    return tuple(term.name for term in TERMS if term.kind in kinds)
