"""Raw exports of jobs for other reporting tools: in the formats of sacct and of XDMoD's shredder, as CSV and as
JSON."""

from scheduling.reports.exports.forms import FORMS, export_lines
from scheduling.reports.exports.reading import Selection, may_export

__all__ = ["FORMS", "Selection", "export_lines", "may_export"]
