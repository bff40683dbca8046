"""The endpoint for the fairness report. It returns the same figures as the report's page and files."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from ninja import Query, Router

from portal.api.fairness import schemas
from portal.api.fields import FileFormat
from portal.api.reports.schemas import Days
from portal.reports.fairness import fairness_in_format, read_fairness
from portal.reports.fairness_tables import COLUMNS
from portal.user_request import ApiRequest
from scheduling.core.amounts import Amounts
from scheduling.shares.fairness import Indices, Statement

router = Router(tags=["Reports"])


@router.get("/fairness", response=schemas.Fairness, url_name="fairness")
def fairness(
    request: ApiRequest,
    days: Query[Days],
    team: str = "",
    cluster: str = "",
    format: FileFormat = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponseBase:
    """Returns the GPU time that each team was entitled to, and the GPU time that it received.

    The amounts of a team do not include those of the teams below it.
    """
    if format != "json":
        return fairness_in_format(request.auth, request.GET, format)
    report = read_fairness(request.auth, request.GET)
    return {
        "begins": report.period.begins,
        "ends": report.period.ends,
        "weights": {one.name: one.weight for one in report.weights},
        "rows": [
            {"team": row.tenant.slug, "generation": row.generation.name, "amounts": _amounts(row.amounts)}
            for row in report.rows
        ],
        "compared": [
            {
                "team": one.tenant.slug,
                "amounts": _amounts(one.amounts),
                "of_entitlement": one.of_entitlement,
            }
            for one in report.compared
        ],
        "indices": _indices(report.indices) if report.indices else None,
        "over_time": [_indices(one) for one in report.over_time],
        "finished": [
            {name: getattr(one, name) for name in ("ended", "median", "worst", "worse_off", "left_out")}
            | {"team": one.tenant.slug, "rated": one.told}
            for one in report.finished
        ],
        "statement": _statement(report.statement) if report.statement else None,
    }


def _amounts(amounts: Amounts) -> dict[str, float | None]:
    return {name: getattr(amounts, name) for name in (*COLUMNS, "delivered")}


def _indices(one: Indices) -> dict[str, Any]:
    same = {name: getattr(one, name) for name in ("begins", "ends", "jain", "max_min")}
    return same | {"teams": one.tenants}


def _statement(statement: Statement) -> dict[str, Any]:
    return {
        "team": statement.tenant.slug,
        "generations": [
            {
                "generation": line.generation.name,
                "speed": line.speed,
                "jobs": line.jobs,
                "amounts": None if line.speed is None else _amounts(line.own),
            }
            for line in statement.lines
        ],
        "total": _amounts(statement.total),
    }
