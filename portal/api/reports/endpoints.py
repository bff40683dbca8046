"""Endpoints for reports of usage, statements and capacity."""

from __future__ import annotations

from typing import Any, Literal

from django.http.response import HttpResponseBase
from ninja import Query, Router

from accounting.core.consistent_read import consistent_read
from portal.api.auth import require_permission
from portal.api.fields import FileFormat
from portal.api.reports import schemas
from portal.reports.capacity import capacity_facts, capacity_in_format, read_capacity
from portal.reports.formats import json_of, json_of_facts
from portal.reports.statement.figures import statement_of
from portal.reports.statement.files import read_statement_query, statement_in_format
from portal.reports.statement.tables import document_of
from portal.reports.usage import answer_to, read_question, usage_facts, usage_in_format
from portal.user_request import ApiRequest

router = Router(tags=["Reports"])


@router.get("/usage", response=schemas.Usage, url_name="usage")
def usage(
    request: ApiRequest,
    days: Query[schemas.Days],
    by: Literal["user", "job", "generation", "day", "label", "tenant"] = "user",
    team: str = "",
    *,
    label: str = "",
    format: FileFormat = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponseBase:
    """Returns the usage report: the GPU-seconds and the cost of each group, where `by` chooses the groups.

    `by=label` groups by the values of the label whose key is given as `label`. Jobs without this label form a group
    whose label is null.
    """
    user, query = request.auth, request.GET
    if format != "json":
        return usage_in_format(user, query, format)
    with consistent_read():
        question = read_question(user, query)
        report = answer_to(question)
        facts = usage_facts(question, report)
    shown = {
        "begins": question.period.begins,
        "ends": question.period.ends,
        "rows": report.rows,
        "totals": report.totals,
    }
    return shown | {"facts": json_of_facts(facts), "lacks_before": report.lacks_before}


@router.get("/statement", response=schemas.Statement, url_name="statement")
def statement(
    request: ApiRequest,
    query: Query[schemas.StatementQuery],
) -> dict[str, Any] | HttpResponseBase:
    """Returns the statement of a team: its bill for a period, including the teams below it.

    With `format=csv`, the file contains only one table of the statement, which `part` chooses.
    """
    if query.format != "json":
        return statement_in_format(request.auth, request.GET, query.format)
    tenant, period = read_statement_query(request.auth, request.GET)
    document = document_of(statement_of(request.auth, tenant, period, whole=True))
    return {"team": tenant.slug, "begins": period.begins, "ends": period.ends} | json_of(document)


@router.get("/capacity", response=schemas.Capacity, url_name="capacity")
def capacity(
    request: ApiRequest,
    days: Query[schemas.Days],
    cluster: str = "",
    format: FileFormat = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponseBase:
    """Returns how the GPU time of the clusters was used, in GPU-seconds by class, such as busy, idle or free. Also
    returns the value of this time, divided into parts.

    The value is GPU-hours times price. Its parts are, for example, the costs of the teams and the value of free GPUs.
    Covers only closed hours, which are completely booked in the ledger. For operators.
    """
    require_permission(request, "report.all")
    if format != "json":
        return capacity_in_format(request.GET, format)
    chosen, period, report = read_capacity(request.GET)
    return {
        "facts": json_of_facts(capacity_facts(chosen, period, report)),
        "begins": report.begins,
        "ends": report.ends,
        "closed_until": report.until,
        "generations": [
            {"generation": row.generation, "gpu_seconds": row.seconds, "capacity_gpu_seconds": row.capacity}
            | {"value": row.value, "currency": row.currency}
            for row in report.rows
        ],
        "identities": [
            {
                "currency": one.currency,
                "tenants": one.tenants,
                "written_off": one.written_off,
                "classes": one.classes,
                "unallocated": one.unallocated,
                "used_by_others": one.others,
                "rounding": one.rounding,
                "drained": one.drained,
                "down": one.down,
                "value": one.value,
                "closes": one.closes,
            }
            for one in report.identities
        ],
    }
