"""The part of a report's page on which one has it sent by mail."""

from __future__ import annotations

from typing import Any

from accounting.models import ReportSubscription, Tenant, User


def by_mail(user: User, report: str, tenant: Tenant | None = None) -> dict[str, Any]:
    """What the template needs; `tenant` is that of a statement, reports for operators have none."""
    of_whom = (
        f"{tenant.name}'s statement"
        if tenant
        else f"“{ReportSubscription.Report(report).label}” of all clusters"
    )
    return {
        "report_by_mail": report,
        "of_whom": of_whom,
        "subscriptions": ReportSubscription.objects.of(user).select_related("tenant"),
        "rhythms": ReportSubscription.Rhythm.choices,
        "forms_by_mail": ReportSubscription.Form.choices,
    }
