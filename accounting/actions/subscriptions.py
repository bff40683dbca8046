"""Actions that start and end a user's subscription to a report by mail."""

from __future__ import annotations

from django.db import transaction

from accounting.access import audit
from accounting.actions.checks import check_choice
from accounting.core.errors import NotAllowed, Refused
from accounting.models import ReportSubscription, Tenant, User
from accounting.notifications import mail

LONGEST_LABEL = 400


def why_not_sent_to(user: User) -> str:
    """Returns the reason why Fairlot cannot mail reports to the user; an empty string if mailing is possible."""
    return mail.why_mail_is_off() or (
        "" if user.email else "Your account has no e-mail address. Ask an admin to set one."
    )


@transaction.atomic(durable=True)
def subscribe_to_report(
    *,
    actor: User,
    report: str = ReportSubscription.Report.STATEMENT,
    tenant: Tenant | None = None,
    rhythm: str,
    form: str = ReportSubscription.Form.PDF,
    by: str = "",
    label: str = "",
) -> ReportSubscription:
    """Subscribes the actor to a report by mail. The first mail is sent after the present week or month has ended.

    `tenant`: the team of the report; None for all teams that the actor may see, or for a report without a team.
    `rhythm`: how often the report is sent. `form`: the file format. `by`: how a usage report groups usage (default: by
    user). `label`: the label key if `by` is "label".

    If the actor already has the same subscription, only its file format changes.
    """
    by = _refuse_nonsense(report, tenant, by, label)
    if not may_have(actor, report, tenant):
        raise NotAllowed(
            f"Only members of {tenant.name} and operators may receive reports about this team."
            if tenant
            else "Only members of a team and operators may receive this report."
            if report in ReportSubscription.OF_TEAMS
            else "Only operators may receive this report."
        )
    check_choice("rhythm", rhythm, ReportSubscription.Rhythm.values, "rhythm")
    check_choice("format", form, ReportSubscription.Form.values, "form")
    if why := why_not_sent_to(actor):
        raise Refused(why)
    # The lock on the user's row makes one subscription of two concurrent requests.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    subscription, is_new = ReportSubscription.objects.get_or_create(
        user=actor, report=report, tenant=tenant, by=by, label=label, rhythm=rhythm, defaults={"form": form}
    )
    before = {} if is_new else {"rhythm": rhythm, "form": subscription.form}
    if subscription.form != form:
        subscription.form = form
        subscription.save(update_fields=["form"])
    after = {"rhythm": rhythm, "form": form}
    if before != after:
        _record(subscription, "subscribe", actor=actor, before=before, after=after)
    return subscription


def _refuse_nonsense(report: str, tenant: Tenant | None, by: str, label: str) -> str:
    """Raises Refused if the report does not accept the options `tenant`, `by` and `label`.

    Returns the grouping of a usage report; an empty string for other reports.
    """
    kinds = ReportSubscription.Report
    check_choice("report", report, kinds.values, "report")
    if report not in ReportSubscription.OF_TEAMS and (report == kinds.STATEMENT) != (tenant is not None):
        raise Refused(
            "Choose the team of the statement."
            if report == kinds.STATEMENT
            else "This report is not about one team. Choose no team.",
            "team",
        )
    if report != kinds.USAGE and by:
        raise Refused("Only the usage report can be grouped.", "by")
    if report == kinds.USAGE:
        by = by or ReportSubscription.By.USER
        check_choice("grouping", by, ReportSubscription.By.values, "by")
    if (by == ReportSubscription.By.LABEL) != bool(label):
        raise Refused(
            "Only a report that is grouped by label takes a label key. Leave the label key empty."
            if label
            else "Enter the label key by which the report is grouped.",
            "label",
        )
    if len(label) > LONGEST_LABEL or "\0" in label:
        raise Refused("No job has a label with this key.", "label")
    return by


def may_have(user: User, report: str, tenant: Tenant | None) -> bool:
    """Returns whether `user` may now receive the report.

    `report`: the kind of report. `tenant`: the team of the report; None for a report about all teams that the user may
    see, or for a report without a team. Only operators may receive reports without a team.
    """
    if not user.is_active:
        return False
    if tenant is not None:
        return Tenant.objects.visible_to(user).filter(pk=tenant.pk).exists()
    if report in ReportSubscription.OF_TEAMS:
        return user.is_operator or Tenant.objects.visible_to(user).exists()
    return user.is_operator


@transaction.atomic(durable=True)
def unsubscribe_from_report(*, actor: User, subscription: ReportSubscription) -> None:
    """Ends the actor's subscription; does nothing if the subscription has already ended."""
    held = ReportSubscription.objects.select_for_update(of=("self",)).of(actor)
    found = held.select_related("tenant").filter(pk=subscription.pk).first()
    if found is not None:
        end_subscription(found, actor=actor)


def end_subscription(subscription: ReportSubscription, *, actor: User | None) -> None:
    """Ends a subscription in the transaction of a caller that has locked the subscription's row.

    `actor`: the user who ends it; None means Fairlot itself.
    """
    before = {"rhythm": subscription.rhythm, "form": subscription.form, "user": subscription.user.username}
    _record(subscription, "unsubscribe", actor=actor, before=before)
    subscription.delete()


def _record(
    subscription: ReportSubscription, what: str, *, actor: User | None, **told: dict[str, str]
) -> None:
    """Writes an audit event about a subscription. The event's target is the team of the report, or the user if there is
    none.

    `what`: what was done, such as "subscribe". The event's verb is then "statement.subscribe" for a statement, and
    "report.subscribe" for any other report. `told`: the arguments `before` and `after` of `audit.record`.
    """
    tenant = subscription.tenant
    is_statement = subscription.report == ReportSubscription.Report.STATEMENT
    kind = "statement" if is_statement else "report"
    of = {} if is_statement else {"report": subscription.report}
    of |= {name: text for name in ("by", "label") if (text := getattr(subscription, name))}
    noted = {name: value and value | of for name, value in told.items()}
    audit.record(
        actor=actor, verb=f"{kind}.{what}", target=tenant or subscription.user, tenant=tenant, **noted
    )
