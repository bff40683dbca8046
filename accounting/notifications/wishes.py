"""Decides which rules want an event, and when a digest is due. Uses no database."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from accounting.models import NotificationEvent, NotificationRule, User
from accounting.models.notifications import OF_RUNS, Audience, EventKind

About, Way, Rhythm = NotificationRule.About, NotificationRule.Way, NotificationRule.Rhythm
# What users get about what concerns them if they have set no rule: the bell shows everything but the runs of jobs.
USUAL: dict[str, tuple[EventKind, ...]] = {
    Way.BELL: tuple(kind for kind in EventKind if kind not in OF_RUNS),
    Way.MAIL: (
        EventKind.JOB_WARNED,
        EventKind.SERVICE_FAILED,
        EventKind.BUDGET,
        EventKind.REQUEST_OPEN,
        EventKind.REQUEST_ANSWERED,
        EventKind.CHANNEL_FAILED,
        EventKind.TOKEN_REVOKED,
        EventKind.TEAM_MEMBER,
    ),
}
DAILY_AT = time(8)  # in the reader's time zone


def usual_rule(user: User, way: str) -> NotificationRule:
    """Returns the unsaved rule that applies to a user without a stored rule for `way` about what concerns the user."""
    return NotificationRule(user=user, about=About.ME, way=way, kinds=[str(kind) for kind in USUAL[way]])


def wants(rule: NotificationRule, event: NotificationEvent) -> bool:
    """Returns whether the rule wants the event. Does not check whether the rule's user may see the event."""
    if event.kind not in rule.kinds:
        return False
    if event.waited_minutes is not None and event.waited_minutes != rule.wait_minutes:
        return False
    match rule.about:
        case About.ME:
            return rule.user_id in event.concerns
        case About.JOB:
            return rule.job_id == event.job_id
    return not event.is_part and event.tenant is not None and rule.tenant_id in event.tenant.lineage


def reaches(rule: NotificationRule, event: NotificationEvent, user: User | None) -> bool:
    """Returns whether an event that the rule wants may be sent to its destination now.

    `user`: the rule's user; None for the rule of a team, whose channel may get all events of the team except those for
    single users. Users get no notification of what they did themselves.
    """
    if user is None:
        return event.tenant_id is not None and event.audience != Audience.PERSON
    return event.may_be_seen_by(user) and user.get_username() != event.actor_name


def due_at(rhythm: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Returns when an event of now is sent: at once, at the next full hour, or at the next DAILY_AT in `zone`."""
    match rhythm:
        case Rhythm.HOURLY:
            return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        case Rhythm.DAILY:
            local = now.astimezone(zone)
            today = datetime.combine(local.date(), DAILY_AT, zone)
            return (
                today if today > now else datetime.combine(local.date() + timedelta(days=1), DAILY_AT, zone)
            )
    return now
