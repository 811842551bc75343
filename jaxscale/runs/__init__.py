"""The runs table: one CSV schema for measured and planned runs, read, checked, described and written."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.runs.description import Description as Description
    from jaxscale.runs.description import describe_rows as describe_rows
    from jaxscale.runs.reader import read_runs as read_runs
    from jaxscale.runs.reader import read_table as read_table
    from jaxscale.runs.schema import COLUMNS as COLUMNS
    from jaxscale.runs.schema import REQUIRED as REQUIRED
    from jaxscale.runs.schema import Runs as Runs
    from jaxscale.tables.cells import Column as Column
    from jaxscale.tables.cells import ModelLookup as ModelLookup
    from jaxscale.tables.table import Row as Row
    from jaxscale.tables.table import write_table as write_table

public_face(__name__)
