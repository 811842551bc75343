"""Results for people: figures, tables, and reports in one self-contained file."""

from jaxscale.files import whole_file as whole_file
from jaxscale.files import write_whole as write_whole
from jaxscale.report.document import Report as Report
from jaxscale.report.fit_report import fit_report as fit_report
