"""What the pages and the API show of an import: the report in the order of importance, and the works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accounting.core.name_order import by_name
from accounting.models import Generation
from scheduling.importers.report import Fate, Line

ORDER = (Fate.REFUSED, Fate.DROPPED, Fate.APPROXIMATED, Fate.DEFAULTED, Fate.MAPPED)


def known_generations() -> list[str]:
    """Returns the GPU types of all attached clusters."""
    found = Generation.objects.filter(nodes__cluster__detached_at=None, nodes__gpus__gt=0)
    return list(found.order_by(*by_name("name")).values_list("name", flat=True).distinct())


def worst_first(lines: Iterable[Line]) -> Sequence[Line]:
    """Returns the lines of a report: those that need attention first, in the order of the text otherwise."""
    return sorted(lines, key=lambda line: ORDER.index(line.fate))
