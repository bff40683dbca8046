"""Having a report sent by mail, and no more."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from accounting import audit
from accounting.errors import NotAllowed, Refused
from accounting.models import ReportSubscription, Tenant, User


@transaction.atomic(durable=True)
def subscribe_to_report(
    *,
    actor: User,
    report: str = ReportSubscription.Report.STATEMENT,
    tenant: Tenant | None = None,
    rhythm: str,
    form: str = ReportSubscription.Form.PDF,
) -> ReportSubscription:
    """The actor gets it from the period on that runs now. The same rhythm again only changes the form."""
    if report not in ReportSubscription.Report.values:
        raise Refused(f"There is {', '.join(ReportSubscription.Report.values)}.", "report")
    if (report == ReportSubscription.Report.STATEMENT) != (tenant is not None):
        raise Refused("A statement is of a team, and no other report is.", "team")
    if not may_have(actor, tenant):
        raise NotAllowed(
            f"Only members of {tenant.name} and operators may have its statement."
            if tenant
            else "Only operators may have this report."
        )
    if rhythm not in ReportSubscription.Rhythm.values:
        raise Refused(f"It is sent {' or '.join(ReportSubscription.Rhythm.values)}.", "rhythm")
    if form not in ReportSubscription.Form.values:
        raise Refused(f"It is sent as {', '.join(ReportSubscription.Form.values)}.", "form")
    if not settings.EMAIL_HOST:
        raise Refused("This portal sends no mail: it knows of no mail server.")
    if not actor.email:
        raise Refused("Your account has no mail address; an admin can set one.")
    # The user's row: two requests at once make one subscription.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    subscription, is_new = ReportSubscription.objects.get_or_create(
        user=actor, report=report, tenant=tenant, rhythm=rhythm, defaults={"form": form}
    )
    before = {} if is_new else {"rhythm": rhythm, "form": subscription.form}
    if subscription.form != form:
        subscription.form = form
        subscription.save(update_fields=["form"])
    after = {"rhythm": rhythm, "form": form}
    if before != after:
        _record(subscription, "subscribe", actor=actor, before=before, after=after)
    return subscription


def may_have(user: User, tenant: Tenant | None) -> bool:
    """Whether a user may have the statement of a team; None: reports for operators."""
    if tenant is None:
        return user.is_active and user.is_operator
    return Tenant.objects.visible_to(user).filter(pk=tenant.pk).exists()


@transaction.atomic(durable=True)
def unsubscribe_from_report(*, actor: User, subscription: ReportSubscription) -> None:
    """Ends one's own subscription; doing it twice is as good as once."""
    held = ReportSubscription.objects.select_for_update(of=("self",)).of(actor)
    found = held.select_related("tenant").filter(pk=subscription.pk).first()
    if found is not None:
        end_subscription(found, actor=actor)


def end_subscription(subscription: ReportSubscription, *, actor: User | None) -> None:
    """The same inside a transaction of the caller's, who holds its row; `actor` None is Fairlot itself."""
    before = {"rhythm": subscription.rhythm, "form": subscription.form, "user": subscription.user.username}
    _record(subscription, "unsubscribe", actor=actor, before=before)
    subscription.delete()


def _record(
    subscription: ReportSubscription, what: str, *, actor: User | None, **told: dict[str, str]
) -> None:
    """An event of the team, or of the user where the report is of no team."""
    tenant = subscription.tenant
    kind = "statement" if tenant else "report"
    of = {} if tenant else {"report": subscription.report}
    noted = {name: value and value | of for name, value in told.items()}
    audit.record(
        actor=actor, verb=f"{kind}.{what}", target=tenant or subscription.user, tenant=tenant, **noted
    )
