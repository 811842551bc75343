"""Presentation of results: figures, tables, and reports in a self-contained file."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.base.files import whole_file as whole_file
    from jaxscale.base.files import write_whole as write_whole
    from jaxscale.report import figures as figures
    from jaxscale.report.document import Report as Report
    from jaxscale.report.reports import fit_report as fit_report
    from jaxscale.report.style import new_figure as new_figure
    from jaxscale.report.style import png as png
    from jaxscale.report.style import style as style

public_face(__name__)
