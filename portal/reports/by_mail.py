"""The part of a report's page in which users subscribe to the report by mail."""

from __future__ import annotations

from typing import Any

from accounting.actions.subscriptions import why_not_sent_to
from accounting.core.prepared import Prepared
from accounting.models import ReportSubscription, Tenant, User


def by_mail(
    user: User, report: str, tenant: Tenant | None = None, *, by: str = "", label: str = ""
) -> dict[str, Any]:
    """Returns the template variables for the part in which users subscribe to a report by mail.

    `tenant` is None for a report on all teams or clusters. For the usage report, `by` is the grouping, and `label` is
    the label key if the report is grouped by label. Both are empty for other reports.
    """
    asked = ReportSubscription(report=report, tenant=tenant, by=by, label=label)
    is_of_teams = report in ReportSubscription.OF_TEAMS
    whole = (
        f"How often to send the report “{asked.name}” on all teams that you may see"
        if is_of_teams
        else f"How often to send the report “{asked.name}” on all clusters"
    )
    return {
        "mail_of": asked,
        "how_often": f"How often to send the report “{asked.name}”" if tenant else whole,
        # A report by label cannot be subscribed to as long as there is no label.
        "may_subscribe": by != ReportSubscription.By.LABEL or bool(label),
        "why_no_mail": why_not_sent_to(user),
        "subscriptions": _subscriptions(user.pk),
        "rhythms": ReportSubscription.Rhythm.choices,
        "forms_by_mail": ReportSubscription.Form.choices,
    }


_subscriptions = Prepared(lambda user: ReportSubscription.objects.of(user).select_related("tenant"))
