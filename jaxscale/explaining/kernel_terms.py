"""Assignment of kernels to the terms of a step: rules for names, and groups of collectives.

The name of a collective states its operation, not its group. The group follows, in this order, from the description of
the group in the trace, from its ranks (tensor-parallel ranks are neighbours), from the degrees of the plan if a single
degree is above 1, and else from the frequency: collectives of layers run many times a step, of gradients and gathers
less often.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxscale.base.documents import parsed_toml

PARTS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul",),
    "attention": ("attention",),
    "memory_bound": ("memory_bound",),
    "optimizer": ("optimizer",),
    "tensor_parallel": ("tensor_parallel",),
    "context_parallel": ("context_parallel",),
    "expert_parallel": ("expert_parallel",),
    "data_parallel": ("data_parallel", "straggler"),
    "pipeline": ("pipeline_bubble", "pipeline_imbalance", "pipeline_transfer"),
    "host": ("launch_gaps", "host", "host_per_step"),
}
"""Components of a step that the trace of a rank can separate, and the cost terms of each. Collectives over all replicas
include waits for late ranks, receives include waits for neighbouring stages. Head and recomputation are divided by
their kernels (`predicted_parts`)."""

NAMES = tuple(PARTS)
COLLECTIVES = ("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", "pipeline")
IS_COLLECTIVE = np.asarray([name in COLLECTIVES for name in NAMES])
HOST = NAMES.index("host")

DEGREE_OF = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel", "dp": "data_parallel"}
"""Step component of the collectives of each degree of a plan."""

SPOKEN = "tensor_parallel", "data_parallel"
"""Step components whose collectives have equal names."""

SPOKEN_KINDS = "all_gather", "reduce_scatter", "all_reduce", "other"
"""Operations of the collectives of `SPOKEN`."""


class CollectiveGroup(NamedTuple):
    """Group of ranks of a collective, from a trace.

    Attributes:
        described: name or description of the group; empty if absent.
        size: number of ranks [1]; 0 if unknown.
        stride: distance of neighbouring ranks [1]; 0 if unknown.
        operation: the collective operation, if the kernel's name does not state it; else empty.
        elements: number of elements of a message [1]; 0 if unknown.
        stream: stream of the collective, if the ranks are unknown; a program uses a separate stream for each group.
    """

    described: str = ""
    size: int = 0
    stride: int = 0
    operation: str = ""
    elements: int = 0
    stream: str = ""

    def without_size(self) -> "CollectiveGroup":
        """Group for messages of any size."""
        return self._replace(elements=0)


@functools.cache
def kernel_term_table() -> dict[str, Any]:
    """Contents of `kernel_terms.toml`."""
    return parsed_toml(files("jaxscale.explaining").joinpath("kernel_terms.toml").read_text(encoding="utf-8"))


@functools.cache
def _patterns(table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    return tuple((re.compile(rule["pattern"], re.IGNORECASE), rule) for rule in kernel_term_table()[table])


@functools.lru_cache(maxsize=1 << 16)
def rule_of(name: str) -> tuple[str, str]:
    """Term and collective operation of a kernel by its name; empty without a matching rule."""
    for pattern, rule in _patterns("rules"):
        if pattern.search(name):
            return rule["term"], rule.get("collective", "")
    return "", ""


def parts_of(
    names: Sequence[str], groups: Sequence[CollectiveGroup], counts: Int[np.ndarray, " kind"], plan: Mapping[str, Any]
) -> tuple[Int[np.ndarray, " kind"], Bool[np.ndarray, " kind"]]:
    """Step component of each type of kernel, as an index in `NAMES`.

    Args:
        names: kernel name of each type.
        groups: collective group of each type.
        counts: number of kernels of each type [1].
        plan: degrees by name [1].

    Returns:
        The components, `memory_bound` without a matching rule, and whether a rule matches [kind].
    """
    found, known = [], []
    often: dict[CollectiveGroup, int] = {}
    for name, group, count in zip(names, groups, counts, strict=True):
        if rule_of(name)[1] in SPOKEN_KINDS:
            # A group counts over messages of all sizes.
            own = group.without_size()
            often[own] = often.get(own, 0) + int(count)
    # Collectives of layers run most often.
    most = max(often, key=lambda group: often[group], default=None)
    for name, group in zip(names, groups, strict=True):
        term, kind = rule_of(name)
        known.append(bool(term))
        if term == "collective":
            term = _part_of_collective(kind, group, plan, group.without_size() == most and len(often) > 1)
        found.append(NAMES.index(term or "memory_bound"))
    return np.asarray(found, int), np.asarray(known, bool)


def _part_of_collective(kind: str, group: CollectiveGroup, plan: Mapping[str, Any], is_most_often: bool) -> str:
    """Step component of a collective by its group, its operation and the plan."""
    if told := next((rule["term"] for pattern, rule in _patterns("groups") if pattern.search(group.described)), ""):
        return told
    # Letters alone: all_to_all and AllToAll are equal.
    operation = re.sub(r"[^a-z]", "", group.operation.lower())
    above = [part for degree, part in DEGREE_OF.items() if plan.get(degree, 1.0) > 1.0]
    if kind == "all_to_all" or operation.startswith("alltoall"):
        return (
            "expert_parallel" if "context_parallel" not in above or "expert_parallel" in above else "context_parallel"
        )
    if kind == "send_recv":
        if plan.get("pp", 1.0) > 1.0:
            return "pipeline"
        # Without stages: ring attention, or experts.
        return "context_parallel" if "context_parallel" in above else "expert_parallel"
    tp = plan.get("tp", 1.0)
    if group.size > 1 and group.stride and tp > 1.0:
        # Tensor-parallel ranks are neighbours.
        return "tensor_parallel" if group.size == tp and group.stride == 1 else "data_parallel"
    if tp > 1.0 and group.size not in (0, tp):
        return "data_parallel"
    possible = [part for part in SPOKEN if part in above]
    if len(possible) == 1:
        return possible[0]
    # In a single replica all experts and sequences are neighbours.
    return "tensor_parallel" if len(possible) == 2 and is_most_often else "data_parallel"
