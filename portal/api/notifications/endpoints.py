"""Endpoints for the caller's notifications, the rules about them, and the channels to which they are posted."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from ninja.responses import Status

from accounting.access.permissions import tenants_where
from accounting.actions.notifications import (
    mark_read,
    remove_channel,
    remove_rule,
    save_channel,
    send_test,
    set_rule,
)
from accounting.core.errors import Refused
from accounting.models import Notification, NotificationChannel, NotificationRule, Tenant
from portal.api.auth import reader_of, require_scope
from portal.api.event_streams import EVENTS, position_of, stream_to
from portal.api.fields import AskedFlag, AskedKey, PageSize
from portal.api.notifications import schemas
from portal.api.notifications.stream import notifications_of
from portal.api.versions import IfMatch, versions_in
from portal.live.streams import Rights
from portal.models import Scope
from portal.user_request import ApiRequest
from scheduling.models import Job
from scheduling.models.versions import OtherVersion, version_of

router = Router(tags=["Notifications"])
AskedPosition = Annotated[str, Query(max_length=20)]


@router.get("/notifications", response=schemas.Notifications, url_name="notifications")
def notifications(
    request: ApiRequest, unread: AskedFlag = False, before: AskedKey = 0, limit: PageSize = 50
) -> dict[str, Any]:
    """Returns the caller's notifications, newest first.

    With `unread=true`, leaves out those that were read. With `before`, returns only those with smaller ids.
    """
    found = Notification.objects.visible_to(request.auth).select_related("event__tenant").order_by("-pk")
    if unread:
        found = found.unread()
    if before:
        found = found.filter(pk__lt=before)
    rows = list(found[: limit + 1])
    return {
        "notifications": [_show(one) for one in rows[:limit]],
        "unread": request.auth.unread,
        "next": rows[limit - 1].pk if len(rows) > limit else None,
    }


@router.get("/notifications/stream", url_name="notification_events", openapi_extra=EVENTS)
def follow(request: ApiRequest, after: AskedPosition = "") -> HttpResponseBase:
    """Streams the caller's notifications as they arrive: jobs that end, fail or wait, sweeps, services, budgets,
    requests.

    An event without a name is a notification, as the list shows it. Its id is the position after it: send it as the
    header Last-Event-ID, or as `after`, to get those that came meanwhile. Without a position, the stream begins with
    those to come. The event `bye` says that the caller should connect again, after ten minutes or because rights may
    have changed.
    """
    user = request.auth
    rights = Rights(request, user, lambda reader: reader.is_active, reader_of(request))
    return stream_to(request, notifications_of(user, position_of(request, after), rights, _as_json))


def _as_json(one: Notification) -> dict[str, Any]:
    return schemas.Notification(**_show(one)).model_dump(mode="json")


@router.post("/notifications/read", response=schemas.Changed, url_name="notifications_read")
def mark(request: ApiRequest, given: schemas.Marked) -> dict[str, int]:
    """Marks notifications of the caller as read, or as unread. Returns how many changed."""
    return {"changed": mark_read(actor=request.auth, ids=given.ids, read=given.read)}


@router.get("/notification-rules", response=list[schemas.Rule], url_name="notification_rules")
def rules(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the caller's rules, and the rules of the channels of teams that the caller manages.

    A caller without a rule about `me` in a place has the usual one there: in the bell, all events; by mail, warnings,
    budgets and requests.
    """
    found = NotificationRule.objects.changeable_by(request.auth).select_related("tenant", "channel")
    return [_show_rule(one) for one in found]


@router.put("/notification-rules", response=schemas.Rule, url_name="notification_rules")
def put_rule(request: ApiRequest, new: schemas.NewRule, if_match: IfMatch = None) -> dict[str, Any]:
    """Sets which events the caller wants to know about a subject in one place. Replaces an earlier rule about both.

    A rule that posts to a channel of a team belongs to the team, and must be about it.
    """
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=new.team) if new.team else None
    if new.job is not None:
        get_object_or_404(Job.objects.visible_to(request.auth), pk=new.job)
    channel = _channel(request, new.channel) if new.channel is not None else None
    try:
        made = set_rule(
            actor=request.auth,
            about=new.about,
            tenant=tenant,
            job_id=new.job,
            kinds=new.events,
            way=new.way,
            channel=channel,
            rhythm=new.rhythm,
            wait_minutes=new.wait_minutes,
            seen=versions_in(if_match),
        )
    except OtherVersion:
        raise
    except Refused as refused:
        raise Refused(refused.message, "events" if refused.field == "kinds" else refused.field) from None
    return _show_rule(made)


@router.delete("/notification-rules/{int:rule_id}", response={204: None}, url_name="notification_rule")
def delete_rule(request: ApiRequest, rule_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Removes a rule."""
    rule = get_object_or_404(NotificationRule.objects.changeable_by(request.auth), pk=_key(rule_id))
    if rule.user_id is None:
        require_scope(request, Scope.TEAM)
    remove_rule(actor=request.auth, rule=rule, seen=versions_in(if_match))
    return Status(204, None)


@router.get("/notification-channels", response=list[schemas.Channel], url_name="notification_channels")
def channels(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the caller's channels, and those of the teams that the caller manages.

    Only the answers that create or change a channel have its `signing_key`, which tokens that only read must not get.
    """
    found = NotificationChannel.objects.changeable_by(request.auth).select_related("tenant")
    return [_show_channel(one) | {"signing_key": None} for one in found]


@router.post("/notification-channels", response={201: schemas.Channel}, url_name="notification_channels")
def create_channel(request: ApiRequest, new: schemas.NewChannel) -> Status[Any]:
    """Creates a channel that belongs to the caller, or to a team that the caller manages."""
    managed = tenants_where(request.auth, "member.change")
    tenant = get_object_or_404(managed, slug=new.team) if new.team else None
    if tenant:
        require_scope(request, Scope.TEAM)
    made = save_channel(
        actor=request.auth, kind=new.kind, name=new.name, url=new.url.get_secret_value(), tenant=tenant
    )
    return Status(201, _show_channel(made))


@router.put(
    "/notification-channels/{int:channel_id}", response=schemas.Channel, url_name="notification_channel"
)
def change_channel(
    request: ApiRequest, channel_id: int, given: schemas.ChangedChannel, if_match: IfMatch = None
) -> dict[str, Any]:
    """Changes the name of a channel and, if `url` is given, its address."""
    url = given.url.get_secret_value() if given.url else ""
    channel = _channel(request, channel_id)
    changed = save_channel(
        actor=request.auth, channel=channel, name=given.name, url=url, seen=versions_in(if_match)
    )
    return _show_channel(changed)


@router.delete(
    "/notification-channels/{int:channel_id}", response={204: None}, url_name="notification_channel"
)
def delete_channel(request: ApiRequest, channel_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Removes a channel with its rules."""
    channel = _channel(request, channel_id)
    remove_channel(actor=request.auth, channel=channel, seen=versions_in(if_match))
    return Status(204, None)


@router.post(
    "/notification-channels/{int:channel_id}/test",
    response=schemas.Tested,
    url_name="notification_channel_test",
)
def test_channel(request: ApiRequest, channel_id: int) -> dict[str, Any]:
    """Posts a test to a channel, and returns whether the channel took it. A success resumes a paused channel."""
    error = send_test(actor=request.auth, channel=_channel(request, channel_id))
    return {"works": not error, "error": error}


def _channel(request: ApiRequest, channel_id: int) -> NotificationChannel:
    """Returns a channel that the caller is about to change or to use. One of a team takes the scope `team`."""
    changeable = NotificationChannel.objects.changeable_by(request.auth).select_related("tenant")
    channel = get_object_or_404(changeable, pk=_key(channel_id))
    if channel.tenant:
        require_scope(request, Scope.TEAM)
    return channel


def _key(number: int) -> int:
    if number >= 2**63:
        raise Http404
    return number


def _show(one: Notification) -> dict[str, Any]:
    event = one.event
    return {
        "id": one.pk,
        "event": event.kind,
        "title": event.title,
        "text": event.text,
        "team": event.tenant.slug if event.tenant else "",
        "job": event.job_id,
        "path": event.path,
        "at": one.at,
        "read_at": one.read_at,
    }


def _show_rule(rule: NotificationRule) -> dict[str, Any]:
    return {
        "id": rule.pk,
        "version": version_of(rule),
        "is_of_team": rule.user_id is None,
        "about": rule.about,
        "team": rule.tenant.slug if rule.tenant else "",
        "job": rule.job_id,
        "events": rule.kinds,
        "way": rule.way,
        "channel": rule.channel_id,
        "rhythm": rule.rhythm,
        "wait_minutes": rule.wait_minutes,
    }


def _show_channel(channel: NotificationChannel) -> dict[str, Any]:
    same = ("kind", "name", "host", "error", "sent_at", "failing_since")
    is_signed = channel.kind == NotificationChannel.Kind.WEBHOOK
    return {name: getattr(channel, name) for name in same} | {
        "id": channel.pk,
        "version": version_of(channel),
        "team": channel.tenant.slug if channel.tenant else "",
        "signing_key": channel.signing_key() if is_signed else None,
        "state": channel.state,
    }
