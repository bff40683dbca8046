"""Actions on notifications: reading them, rules about them, and channels to which they are posted."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from django.conf import settings
from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import may
from accounting.actions.checks import check_choice, check_name, refused_if_taken
from accounting.core.clock import now_from_database
from accounting.core.encryption import SealError, seal
from accounting.core.errors import NotAllowed, Refused
from accounting.models import (
    Notification,
    NotificationChannel,
    NotificationItem,
    NotificationRule,
    Tenant,
    User,
    WebhookCall,
)
from accounting.models.budgets import new_nonce
from accounting.models.notifications import OF_JOBS, USUAL_WAIT, WAITS, EventKind
from accounting.models.versions import require_version
from accounting.notifications import mail, safe_http
from accounting.notifications.messages import body_for, example
from accounting.notifications.unread import lock_readers, recount
from accounting.notifications.webhooks import hidden, note_channel, posted

About, Way, Rhythm = NotificationRule.About, NotificationRule.Way, NotificationRule.Rhythm
MOST_RULES = 200  # of one user or team
MOST_CHANNELS = 20
LONGEST_URL = 2000
# What somebody who follows one job wants to know.
OF_A_JOB = tuple(str(kind) for kind in OF_JOBS)


@transaction.atomic(durable=True)
def mark_read(*, actor: User, ids: Iterable[int] | None = None, read: bool = True) -> int:
    """Marks the actor's notifications with these ids as read, or as unread. Returns how many changed.

    `ids`: None means all. Ids of other users' notifications have no effect.
    """
    readers = lock_readers([actor.pk])
    own = Notification.objects.filter(user=actor)
    if ids is not None:
        own = own.filter(pk__in=list(ids))
    changed = own.filter(read_at__isnull=read)
    count = changed.update(read_at=now_from_database() if read else None)
    recount(readers)
    return count


@transaction.atomic(durable=True)
def set_rule(
    *,
    actor: User,
    about: str = About.ME,
    tenant: Tenant | None = None,
    job_id: int | None = None,
    kinds: Sequence[str],
    way: str = Way.BELL,
    channel: NotificationChannel | None = None,
    rhythm: str = Rhythm.AT_ONCE,
    wait_minutes: int = USUAL_WAIT,
    seen: Collection[str] | None = None,
) -> NotificationRule:
    """Sets what the actor wants to know about a subject in one way, and replaces an earlier rule about both.

    - `about`: what concerns the actor, a team (`tenant`), or a job (`job_id`), which the caller has found to be
      visible.
    - `kinds`: the kinds of events. An empty list is accepted only about what concerns the actor: it switches the usual
      notifications off.
    - `way`: the bell, mail, or `channel`. With a team's channel, the rule belongs to the team, and must be about it.
    - `rhythm`: at once, or a digest. The bell shows everything at once.
    - `wait_minutes`: after which time a waiting job is an event.

    Raises Refused for invalid values, and NotAllowed if the actor may not see the team or change the channel.
    """
    check_choice("subject", about, About.values, "about")
    check_choice("way", way, Way.values, "way")
    check_choice("rhythm", rhythm, Rhythm.values, "rhythm")
    for kind in kinds:
        check_choice("event", kind, EventKind.values, "kinds")
    if not kinds and about != About.ME:
        raise Refused("Choose at least one event.", "kinds")
    if wait_minutes not in WAITS:
        raise Refused(f"Choose one of: {', '.join(map(str, WAITS))} minutes.", "wait_minutes")
    if way == Way.BELL and rhythm != Rhythm.AT_ONCE:
        raise Refused("The bell shows events at once. Choose “at once”.", "rhythm")
    if way == Way.MAIL and (why := why_no_mail(actor)):
        raise Refused(why, "way")
    _check_subject(actor, about, tenant, job_id, kinds)
    owner: User | None = actor
    if way == Way.CHANNEL:
        channel = _changeable(actor, channel)
        if channel.tenant_id is not None:
            owner = None
            if about != About.TEAM or tenant is None or tenant.pk != channel.tenant_id:
                raise Refused("A channel of a team gets events of this team. Choose the team.", "about")
    elif channel is not None:
        raise Refused("Choose a channel only for notifications in a channel.", "channel")
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)  # another rule about the same waits
    held = NotificationRule.objects.filter(user=owner, channel__tenant=channel.tenant if channel else None)
    if held.count() >= MOST_RULES:
        raise Refused(f"At most {MOST_RULES} rules are possible. Remove a rule first.")
    same = {"user": owner, "about": about, "tenant": tenant, "job_id": job_id, "way": way, "channel": channel}
    require_version(NotificationRule.objects.filter(**same).first() if seen is not None else None, seen)
    rule, is_new = NotificationRule.objects.update_or_create(
        user=owner, about=about, tenant=tenant, job_id=job_id, way=way, channel=channel,
        defaults={
            "kinds": list(dict.fromkeys(kinds)), "rhythm": rhythm, "wait_minutes": wait_minutes
        },
    )  # fmt: skip
    if owner is None:
        verb = "notification_rule.create" if is_new else "notification_rule.change"
        audit.record(actor=actor, verb=verb, target=rule, tenant=tenant, after=_audit_values(rule))
    return rule


@transaction.atomic(durable=True)
def remove_rule(*, actor: User, rule: NotificationRule, seen: Collection[str] | None = None) -> None:
    """Removes a rule. The usual notifications about what concerns the actor then apply again.

    `seen`: versions of which the rule must have one; see accounting/models/versions.py.
    """
    found = NotificationRule.objects.changeable_by(actor).select_for_update(of=("self",))
    held = found.filter(pk=rule.pk).select_related("tenant").first()
    if held is None:
        raise Refused("This rule no longer exists.")
    require_version(held, seen)
    if held.user_id is None:
        before = _audit_values(held)
        audit.record(
            actor=actor, verb="notification_rule.remove", target=held, tenant=held.tenant, before=before
        )
    held.delete()


@transaction.atomic(durable=True)
def save_channel(
    *,
    actor: User,
    channel: NotificationChannel | None = None,
    kind: str = "",
    name: str,
    url: str = "",
    tenant: Tenant | None = None,
    seen: Collection[str] | None = None,
) -> NotificationChannel:
    """Creates a channel of the actor or, with `tenant`, of a team; or changes the name and the URL of `channel`.

    `url`: the address of an incoming webhook; empty leaves the address of `channel` unchanged. It is stored encrypted,
    and no page, answer or audit event contains it. `seen`: as for `remove_rule`.
    """
    if channel is None:
        _check_owner(actor, tenant)
        check_choice("kind", kind, NotificationChannel.Kind.values, "kind")
        User.objects.select_for_update(no_key=True).get(pk=actor.pk)
        user = None if tenant else actor
        if NotificationChannel.objects.filter(user=user, tenant=tenant).count() >= MOST_CHANNELS:
            raise Refused(f"At most {MOST_CHANNELS} channels are possible. Remove a channel first.")
        channel = NotificationChannel(user=user, tenant=tenant, kind=kind)
        is_new = True
    else:
        channel, is_new = _changeable(actor, channel), False
        _require_version(channel, seen)
    name = name.strip()
    check_name(name)
    if len(name) > 60:
        raise Refused("Enter a name of at most 60 characters.", "name")
    channel.name = name
    if url or is_new:
        _set_url(actor, channel, url.strip())
    with refused_if_taken("Another channel has this name. Choose another name.", "name"):
        channel.save()
    verb = "notification_channel.create" if is_new else "notification_channel.change"
    after = {"kind": channel.kind, "name": channel.name, "host": channel.host}
    audit.record(actor=actor, verb=verb, target=channel, tenant=channel.tenant, after=after)
    return channel


@transaction.atomic(durable=True)
def remove_channel(*, actor: User, channel: NotificationChannel, seen: Collection[str] | None = None) -> None:
    """Removes a channel with its rules. What was not posted yet is not posted. `seen`: as for `remove_rule`."""
    held = _changeable(actor, channel)
    _require_version(held, seen)
    before = {"kind": held.kind, "name": held.name, "host": held.host}
    audit.record(
        actor=actor, verb="notification_channel.remove", target=held, tenant=held.tenant, before=before
    )
    NotificationItem.objects.filter(channel=held).delete()
    held.delete()


def send_test(*, actor: User, channel: NotificationChannel) -> str:
    """Posts a test to a channel at once. Returns "" if the channel took it, otherwise why it did not.

    If a channel was paused because it no longer worked, a successful test resumes it, and what waits is posted.
    """
    held = _changeable(actor, channel)
    body = json.dumps(body_for(held, [example(held)]))
    error = posted(WebhookCall(channel=held, body=body))
    with transaction.atomic(durable=True):
        note_channel(held.pk, error=error)
    return error


def why_no_mail(user: User) -> str:
    """Returns why Fairlot cannot send mail to the user; "" if it can."""
    return mail.why_mail_is_off() or (
        "" if user.email else "Your account has no e-mail address. Ask an admin to set one."
    )


def forget_unseen(user: User) -> None:
    """Deletes the notifications that a user may no longer see, in the transaction that took a role away."""
    readers = lock_readers([user.pk])
    seen = Notification.objects.visible_to(User.objects.get(pk=user.pk)).values("pk")
    Notification.objects.filter(user=user).exclude(pk__in=seen).delete()
    recount(readers)


def _check_subject(
    actor: User, about: str, tenant: Tenant | None, job_id: int | None, kinds: Sequence[str]
) -> None:
    if (about == About.TEAM) != (tenant is not None) or (about == About.JOB) != (job_id is not None):
        raise Refused("Choose the team or the job that the rule is about.", "about")
    if tenant is not None and not Tenant.objects.visible_to(actor).filter(pk=tenant.pk).exists():
        raise NotAllowed("Only members of the team and operators may be told of its events.")
    if about == About.JOB and not set(kinds) <= set(OF_A_JOB):
        raise Refused(f"Events of a job are: {', '.join(OF_A_JOB)}.", "kinds")


def _check_owner(actor: User, tenant: Tenant | None) -> None:
    if tenant is not None and not may(actor, "member.change", tenant):
        raise NotAllowed(f"Only admins and managers of {tenant} may change its channels.")


def _changeable(actor: User, channel: NotificationChannel | None) -> NotificationChannel:
    if channel is None:
        raise Refused("Choose a channel.", "channel")
    found = NotificationChannel.objects.changeable_by(actor).select_related("user", "tenant")
    held = found.filter(pk=channel.pk).first()
    if held is None:
        raise NotAllowed("Only the owner of a channel, and managers of its team, may use it.")
    return held


def _require_version(channel: NotificationChannel, seen: Collection[str] | None) -> None:
    if seen is not None:
        held = NotificationChannel.objects.select_for_update(of=("self",)).select_related("user", "tenant")
        require_version(held.filter(pk=channel.pk).first(), seen)


def _set_url(actor: User, channel: NotificationChannel, url: str) -> None:
    if settings.FAIRLOT_WEBHOOKS_TO_PRIVATE and not actor.is_admin:
        raise Refused(
            "Only admins may set the address of a channel, because this portal lets webhooks call private networks.",
            "url",
        )
    if len(url) > LONGEST_URL:
        raise Refused(f"Enter an address of at most {LONGEST_URL} characters.", "url")
    try:
        parts = safe_http.check_url(url)
        channel.sealed = seal(url.encode())
    except (safe_http.NotReachable, SealError) as error:
        raise Refused(hidden(str(error), url), "url") from None
    channel.host = parts.hostname or ""
    # Who knows the earlier address may also know the earlier key.
    channel.nonce, channel.gave_up_at, channel.failing_since, channel.error = new_nonce(), None, None, ""


def _audit_values(rule: NotificationRule) -> dict[str, object]:
    channel = rule.channel.name if rule.channel else ""
    return {"kinds": rule.kinds, "channel": channel, "rhythm": rule.rhythm, "wait_minutes": rule.wait_minutes}
