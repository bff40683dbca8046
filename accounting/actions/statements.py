"""Having the statement of a team sent by mail, and no more."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from accounting import audit
from accounting.errors import NotAllowed, Refused
from accounting.models import StatementSubscription, Tenant, User


@transaction.atomic(durable=True)
def subscribe_to_statement(
    *, actor: User, tenant: Tenant, rhythm: str, form: str = StatementSubscription.Form.PDF
) -> StatementSubscription:
    """The actor gets it from the period on that runs now. The same rhythm again only changes the form."""
    if not Tenant.objects.visible_to(actor).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} and operators may have its statement.")
    if rhythm not in StatementSubscription.Rhythm.values:
        raise Refused(f"It is sent {' or '.join(StatementSubscription.Rhythm.values)}.", "rhythm")
    if form not in StatementSubscription.Form.values:
        raise Refused(f"It is sent as {', '.join(StatementSubscription.Form.values)}.", "form")
    if not settings.EMAIL_HOST:
        raise Refused("This portal sends no mail: it knows of no mail server.")
    if not actor.email:
        raise Refused("Your account has no mail address; an admin can set one.")
    # The user's row: two requests at once make one subscription.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    subscription, is_new = StatementSubscription.objects.get_or_create(
        user=actor, tenant=tenant, rhythm=rhythm, defaults={"form": form}
    )
    before = {} if is_new else {"rhythm": rhythm, "form": subscription.form}
    if subscription.form != form:
        subscription.form = form
        subscription.save(update_fields=["form"])
    after = {"rhythm": rhythm, "form": form}
    if before != after:
        audit.record(
            actor=actor, verb="statement.subscribe", target=tenant, tenant=tenant, before=before, after=after
        )
    return subscription


@transaction.atomic(durable=True)
def unsubscribe_from_statement(*, actor: User, subscription: StatementSubscription) -> None:
    """Ends one's own subscription; doing it twice is as good as once."""
    held = StatementSubscription.objects.select_for_update(of=("self",)).of(actor)
    found = held.select_related("tenant").filter(pk=subscription.pk).first()
    if found is not None:
        end_subscription(found, actor=actor)


def end_subscription(subscription: StatementSubscription, *, actor: User | None) -> None:
    """The same inside a transaction of the caller's, who holds its row; `actor` None is Fairlot itself."""
    before = {"rhythm": subscription.rhythm, "form": subscription.form, "user": subscription.user.username}
    audit.record(
        actor=actor,
        verb="statement.unsubscribe",
        target=subscription.tenant,
        tenant=subscription.tenant,
        before=before,
    )
    subscription.delete()
