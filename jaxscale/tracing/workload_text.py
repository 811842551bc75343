"""Text of a traced workload: flop, bytes and kernels by group and phase, and its dimension classes."""

from collections.abc import Mapping

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.tracing.program import PHASES
from jaxscale.tracing.workload_tables import KernelColumns, WorkloadTables

MOST_CLASSES = 12
"""Classes that the text lists [1]."""

MOST_GROUPS = 20
"""Groups that the text lists, the largest by bytes first [1]."""


GROUP_COLUMNS = (
    text_column("group and phase", says="{}:"),
    TableColumn("flop", "Gflop", "Gflop", stays=True),
    TableColumn("bytes", "GB", "GB", stays=True),
    TableColumn("kernels", says="{} kernels", stays=True),
)


def workload_parts(tables: WorkloadTables, columns: KernelColumns, classes: Mapping[str, float]) -> list[str | Table]:
    """Table of the kernels by group and phase, and a line of the dimension classes.

    Args:
        tables: of the workload.
        columns: quantities of its kernels.
        classes: size of each class, by name [1].
    """
    rows = group_rows(tables, columns)
    total = np.sum([row[2:] for row in rows], axis=0) if rows else np.zeros(3)
    shown = [(f"{group} {phase}".strip(), *amounts) for group, phase, *amounts in rows] + [("total", *total)]
    cells = [
        (name, f"{flop / 1e9:,.1f}", f"{moved / 1e9:,.2f}", f"{launches:,.0f}") for name, flop, moved, launches in shown
    ]
    arguments = [
        name for name, origin in zip(tables.class_names, tables.origins, strict=True) if origin in ("data", "weights")
    ]
    listed = ", ".join(f"{name} = {classes[name]:,.0f}" for name in arguments[:MOST_CLASSES])
    more = f", and {len(arguments) - MOST_CLASSES} more" if len(arguments) > MOST_CLASSES else ""
    return [make_table("", GROUP_COLUMNS, cells), f"classes: {listed}{more}"]


def group_rows(tables: WorkloadTables, columns: KernelColumns) -> list[tuple[str, str, float, float, float]]:
    """Group, phase, flop [flop], bytes [byte] and launches [1] of the kernels, in program order of the groups.

    Groups beyond the largest `MOST_GROUPS` by bytes are one, `others`.
    """
    flop, moved, launches = (np.asarray(one, float) for one in (columns.flop, columns.bytes, columns.launches))
    size: dict[str, float] = {}
    for group, amount in zip(tables.groups, moved, strict=True):
        size[group] = size.get(group, 0.0) + float(amount)
    kept = set(sorted(size, key=lambda group: -size[group])[:MOST_GROUPS])
    sums: dict[tuple[str, str], np.ndarray] = {}
    for group, phase, *amounts in zip(tables.groups, tables.phases, flop, moved, launches, strict=True):
        key = (group if group in kept else "others", phase)
        sums[key] = sums.get(key, np.zeros(3)) + np.array(amounts)
    order = {group: place for place, group in enumerate([*dict.fromkeys(tables.groups), "others"])}
    keys = sorted(sums, key=lambda key: (PHASES.index(key[1]), order[key[0]]))  # pyright: ignore
    return [(*key, float(sums[key][0]), float(sums[key][1]), float(sums[key][2])) for key in keys]
