"""Pages of lists in the API: each is continued after the last object of the page before it, which its id names."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict
from ninja import Field, Schema

from accounting.core.wording import unknown_choice
from accounting.models import User
from portal.api.fields import Line
from portal.api.filters import check_names
from portal.lists.columns import after
from portal.lists.saved import find_view, views_for
from portal.lists.work import WorkFilter, WorkList
from portal.sorting import M
from scheduling.spec.job_spec import SpecError


class ListFilters(Schema):
    """The filters and the order of a list of work."""

    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name of the owner.")
    view: Line = Field(
        "",
        description="Id or name of a saved view, whose filters apply, too, and whose order applies without `sort`.",
    )
    sort: Line = Field(
        "",
        description="Column of the list to sort by, such as `name`, `state` or `owner`, with a leading `-` for "
        "descending order. Objects without a value come last. Without it, the newest comes first.",
    )


def page_of(
    work: WorkList[M],
    user: User,
    filters: ListFilters,
    before: int | None,
    limit: int,
    **more: Any,
) -> tuple[list[M], int | None]:
    """Returns the objects that match the filters and follow the object with the id `before`, at most `limit`, and the
    id with which the next page begins; None on the last page.

    `more` are further lookups. Those without a value have no effect. Raises SpecError for an unknown order, and for a
    view that the user may not see, and NoSuch for a team or an owner that the user may not see.
    """
    wanted = {
        f"{work.prefix}tenant__slug": filters.team,
        f"{work.prefix}owner__username": filters.owner,
        **more,
    }
    seen = work.seen(user)
    rows = seen.filter(**{name: value for name, value in wanted.items() if value})
    sort = filters.sort
    if filters.view:
        chosen = _view(work, user, filters.view)
        rows, sort = chosen.narrow(rows, work, user), sort or chosen.sort
    if sort and not work.columns.sorts_by(sort):
        raise SpecError({"sort": unknown_choice("column", sort, work.columns.sortable)})
    if sort:
        order = work.columns.by(sort)
        rows = (after(rows, order, before, among=seen) if before else rows).order_by(*order)
    else:
        rows = (rows.filter(pk__lt=before) if before else rows).order_by("-pk")
    found = list(rows[: limit + 1])
    if not (found or before):
        check_names(user, team=filters.team, owner=filters.owner)
    return found[:limit], found[limit - 1].pk if len(found) > limit else None


def _view(work: WorkList[Any], user: User, text: str) -> WorkFilter:
    views = views_for(user, work.name)
    view = find_view(views, text)
    if view is None:
        raise SpecError({"view": unknown_choice("view", text, [one.name for one in views])})
    return WorkFilter.read(QueryDict(view.query), work)
