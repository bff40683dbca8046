"""Pages of lists in the API: newest first, each continued before the id of the last object of the page before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


def page_before(
    rows: QuerySet[M], filters: Mapping[str, Any], before: int | None, limit: int
) -> tuple[list[M], int | None]:
    """Returns the newest objects with an id below `before`, at most `limit`, and the next `before`.

    `filters` are lookups with their values; those without a value have no effect. The next `before` is None on the last
    page.
    """
    wanted = {name: value for name, value in {**filters, "pk__lt": before}.items() if value}
    found = list(rows.filter(**wanted).order_by("-pk")[: limit + 1])
    return found[:limit], found[limit - 1].pk if len(found) > limit else None
