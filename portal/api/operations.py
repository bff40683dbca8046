"""What operators look at: the same tables as on their pages and in the files."""

from __future__ import annotations

from typing import Any, Literal

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from ninja import Router

from portal.reports import exports
from portal.reports.formats import json_of
from portal.reports.operations.views import operations_file, read_operations

router = Router(tags=["Operations"])
PeriodName = Literal["this-month", "last-month", "dates"]
Form = Literal["json", "csv", "xlsx", "pdf"]


@router.get("/operations/{subject}", url_name="operations")
def operations(
    request: HttpRequest,
    subject: Literal["use", "nodes", "waits", "waste", "prices", "chargeback"],
    cluster: str = "",
    period: PeriodName = "this-month",
    format: Form = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponse:
    """Tables by name, each with `rows` and, where there are some, `totals`; for operators. `period` as in usage."""
    request.user = request.auth
    if not request.user.is_operator:
        raise Http404
    if format != "json":
        return operations_file(request, subject, format)
    _, document = read_operations(request, subject)
    return json_of(document)


@router.get("/chargeback", url_name="chargeback")
def chargeback(
    request: HttpRequest,
    cluster: str = "",
    period: PeriodName = "this-month",
    format: Form = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponse:
    """What every team bears of closed hours, by generation; for operators. `period` as in usage."""
    return operations(request, "chargeback", cluster, period, format)


@router.get(
    "/exports/{form}", url_name="export", openapi_extra={"responses": {200: {"description": "The file."}}}
)
def export(
    request: HttpRequest,
    form: Literal["sacct.txt", "xdmod.txt", "jobs.csv", "jobs.json"],
    team: str = "",
    period: PeriodName = "this-month",
    anonymous: Literal["", "1"] = "",
) -> HttpResponseBase:
    """Jobs for other tools, as a stream: all for operators, their own teams' for managers. `period` as in usage."""
    request.user = request.auth
    return exports.export(request, form)
