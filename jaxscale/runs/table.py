"""A runs table in memory, of training or of serving."""

from dataclasses import dataclass

from jaxscale.tables.table import AbstractTable


@dataclass(frozen=True, repr=False)
class Runs(AbstractTable):
    """A table of runs, column by column; see `AbstractTable`."""

    shown = ("model", "workload", "framework", "gpu", "n_gpus", "dp", "tp", "pp", "micro_batch_size", "step_time_s")
