"""Exports of jobs as streamed downloads. Operators export all jobs; managers export the jobs of their teams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from asgiref.sync import sync_to_async
from django.http import Http404, HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from accounting.models import User
from portal.live.streams import Rights, while_allowed
from portal.reports.periods import asked_period
from portal.user_request import UserRequest
from scheduling.reports.exports import FORMS, Selection, export_lines, may_export
from scheduling.reports.exports.reading import exportable_tenants


@require_GET
def export(request: UserRequest, form: str) -> HttpResponseBase:
    return jobs_in_format(request, request.user, form)


def jobs_in_format(
    request: HttpRequest, user: User, form: str, reader: Callable[[], User | None] | None = None
) -> HttpResponseBase:
    """Streams as a file the jobs that existed in the period in the URL query. `form` is the file format.

    The URL query has these optional parameters:

    - `team`: exports only the jobs of this team and the teams below it. Without it, all jobs that `user` may export.
    - `all=whole`: exports jobs that are only partly in the period with all their time. Without it, only with their time
      in the period.
    - `anonymous=1`: replaces names by pseudonyms.

    The stream ends if `user` loses the right to export; `reader`: as for Rights. Raises Http404 for an unknown format
    or team, and if `user` may not export. Raises WrongQuestion for an invalid period.
    """
    query = request.GET
    if form not in FORMS or not may_export(user):
        raise Http404
    tenant = None
    if slug := query.get("team", ""):
        tenant = get_object_or_404(exportable_tenants(user), slug=slug)
    period = asked_period(query)
    selection = Selection.of(
        user,
        period.begins,
        period.ends,
        tenant=tenant,
        anonymous=query.get("anonymous") == "1",
        whole=query.get("all") == "whole",
    )
    stem, _, ending = form.partition(".")
    name = f"fairlot-{stem}-{period.in_a_name}.{ending}"
    rights = Rights(request, user, may_export, reader)
    return StreamingHttpResponse(
        while_allowed(pieces_sent(export_lines(form, selection)), rights),
        content_type=FORMS[form][1],
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


async def pieces_sent(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Yields the pieces asynchronously. A worker thread computes the next piece only after the previous one was
    sent."""
    while (piece := await sync_to_async(lambda: next(pieces, None))()) is not None:
        yield piece
