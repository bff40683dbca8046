"""Endpoints for the operators' reports and for exports of jobs. The tables are the same as on the reports' pages and in
their files."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpResponseBase
from ninja import Query, Router

from portal.api.auth import reader_of, require_permission
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
    """Returns the tables of the report `subject`. Each table has a key, rows and totals. For operators."""
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
    """Returns the cost that each team bears, by generation. For operators.

    Covers only closed hours, which are the hours whose GPU time and costs are completely booked in the ledger.
    """
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
    """Streams the jobs of a period as a file, for example in the format of Slurm's sacct. Operators get all jobs;
    managers get the jobs of their teams.

    A job that is only partly in the period is exported with its time in the period. With `all=whole`, it is exported
    with all its time. The file `xdmod.txt` always contains whole attempts: those that ended in the period. With
    `anonymous=1`, names are replaced by pseudonyms.
    """
    return jobs_in_format(request, request.auth, form, reader_of(request))
