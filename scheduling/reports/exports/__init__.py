"""Raw exports for those who have reports of their own: jobs as sacct, XDMoD's shredder, CSV and JSON have them."""

from scheduling.reports.exports.forms import FORMS, export_lines
from scheduling.reports.exports.reading import Selection, may_export

__all__ = ["FORMS", "Selection", "export_lines", "may_export"]
