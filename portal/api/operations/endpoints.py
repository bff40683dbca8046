"""Endpoints for the reports for operators, with the same tables as their pages and files, and for exports of jobs."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpResponseBase
from ninja import Query, Router

from portal.api.auth import require_permission
from portal.api.fields import FileFormat
from portal.api.reports.schemas import Days, Tables
from portal.reports.exports import jobs_in_format
from portal.reports.formats import json_of
from portal.reports.operations.files import operations_in_format, read_operations
from portal.user_request import ApiRequest

router = Router(tags=["Operations"])


@router.get("/operations/{subject}", response=Tables, url_name="operations")
def operations(
    request: ApiRequest,
    subject: Literal["use", "nodes", "waits", "waste", "prices", "chargeback"],
    days: Query[Days],
    cluster: str = "",
    format: FileFormat = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponseBase:
    """Returns the tables of a report by key. Each table has rows and totals. For operators."""
    require_permission(request, "report.all")
    if format != "json":
        return operations_in_format(request.GET, subject, format)
    _, document = read_operations(request.GET, subject)
    return json_of(document)


@router.get("/chargeback", response=Tables, url_name="chargeback")
def chargeback(
    request: ApiRequest,
    days: Query[Days],
    cluster: str = "",
    format: FileFormat = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponseBase:
    """Returns the cost of the closed hours that each team bears, by generation. For operators."""
    return operations(request, "chargeback", days, cluster, format)


@router.get(
    "/exports/{form}", url_name="export", openapi_extra={"responses": {200: {"description": "The file."}}}
)
def export(
    request: ApiRequest,
    form: Literal["sacct.txt", "xdmod.txt", "jobs.csv", "jobs.json"],
    days: Query[Days],
    team: str = "",
    *,
    anonymous: Literal["", "1"] = "",
    all: Literal["", "whole"] = "",  # noqa: A002
) -> HttpResponseBase:
    """Streams jobs in the format of another tool. Operators get all jobs, managers get the jobs of their teams.

    Jobs are cut at the bounds of the period, so that files of adjoining periods add up. `all=whole` exports jobs
    uncut.
    """
    return jobs_in_format(request, request.auth, form)
