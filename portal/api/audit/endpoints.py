"""Endpoints for the audit trail."""

from __future__ import annotations

from typing import Any, Literal

from django.http import Http404
from django.http.response import HttpResponseBase
from ninja import Query, Router

from portal.administration.trail_search import found_by, may_search, row_of, trail_in_format
from portal.api.audit import schemas
from portal.api.auth import reader_of
from portal.api.fields import AskedKey, PageSize
from portal.user_request import ApiRequest

router = Router(tags=["Administration"])


@router.get("/audit", response=schemas.AuditPage, url_name="audit")
def audit(
    request: ApiRequest, asked: Query[schemas.AuditSearch], before: AskedKey = 0, limit: PageSize = 50
) -> dict[str, Any]:
    """Returns one page of the changes that match, newest first. Operators read all; managers those of their teams.

    To get the next page, with older changes, set `before` to this page's `next`, which is null on the last page.
    """
    if not may_search(request.auth):
        raise Http404
    found = found_by(request.GET, request.auth).select_related("tenant").order_by("-pk")
    rows = list((found.filter(pk__lt=before) if before else found)[: limit + 1])
    return {
        "items": [row_of(event) for event in rows[:limit]],
        "next": rows[limit - 1].pk if len(rows) > limit else None,
    }


@router.get(
    "/audit/{form}", url_name="audit_file", openapi_extra={"responses": {200: {"description": "The file."}}}
)
def audit_file(
    request: ApiRequest, form: Literal["audit.csv", "audit.jsonl"], asked: Query[schemas.AuditSearch]
) -> HttpResponseBase:
    """Streams all changes that match as CSV or as JSON lines, newest first. Operators read all; managers those of their
    teams."""
    return trail_in_format(request, request.auth, form, reader_of(request))
