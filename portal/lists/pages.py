"""Pages of the lists of work: sorted, filtered to the reader's own objects, and refreshed while jobs change."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet

from accounting.models import Tenant
from portal.live.topics import topics_of_jobs
from portal.sorting import M, Sorting
from portal.user_request import UserRequest

ROWS = 50


def list_page(
    request: UserRequest, found: QuerySet[M], sorting: Sorting, *, owner: str = "owner"
) -> dict[str, Any]:
    """Returns the template variables of a list: its page and order, and whether it has only the reader's objects.

    The address says so by `owner=me`, and `owner` is the lookup of an object's owner.
    """
    mine = request.GET.get("owner") == "me"
    if mine:
        found = found.filter(**{owner: request.user})
    return {
        "mine": mine,
        "sort": sorting.chosen(request.GET),
        "page": Paginator(sorting.order(found, request.GET), ROWS).get_page(request.GET.get("page")),
        "teams": Tenant.objects.visible_to(request.user).count(),
        "topics": topics_of_jobs(request.user),
    }
