"""The texts of notifications: mails, Slack messages, Adaptive Cards for Microsoft Teams, and JSON for webhooks.

Every function takes one event, or several for a digest. Values from users are escaped: in Slack `<!channel>` would
alert everybody, and cards read a kind of Markdown, in which a name could become a link.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from accounting.core.wording import counted, exact
from accounting.models import NotificationChannel, NotificationEvent

MOST_LISTED = 20  # events in one digest; the page in the portal has all
LONGEST_SECTION = 2900  # characters; Slack refuses a section with more than 3000
LONGEST_TEXT = 600
MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>])")
UTC = ZoneInfo("UTC")

Events = Sequence[NotificationEvent]


def url_of(event: NotificationEvent) -> str:
    return f"{settings.PUBLIC_URL}{event.path}"


def facts_of(event: NotificationEvent, zone: ZoneInfo) -> list[tuple[str, str]]:
    """Returns the facts of an event as pairs of texts, with times in `zone`."""
    return [(name, _value(value, zone)) for name, value in event.facts]


def title_of(events: Events) -> str:
    return events[0].title if len(events) == 1 else counted(len(events), "notification")


def mail_text(events: Events, zone: ZoneInfo) -> str:
    """Returns the text of a mail."""
    parts = [_mail_part(event, zone) for event in events[:MOST_LISTED]]
    if len(events) > MOST_LISTED:
        parts.append(f"{_more(events)}: {settings.PUBLIC_URL}/notifications/\n")
    parts.append(f"Choose your notifications: {settings.PUBLIC_URL}/notifications/settings/\n")
    return "\n".join(parts)


def body_for(channel: NotificationChannel, events: Events) -> dict[str, Any]:
    """Returns what is posted to a channel, as the channel's kind needs it."""
    match channel.kind:
        case NotificationChannel.Kind.SLACK:
            return _slack(events)
        case NotificationChannel.Kind.TEAMS:
            return _teams(events)
    return _webhook(events)


def example(channel: NotificationChannel) -> NotificationEvent:
    """Returns an unsaved event for a test of a channel."""
    return NotificationEvent(
        key=f"test:{channel.pk}",
        kind="test",
        title="Test of a channel",
        text="Fairlot can post to this channel.",
        path="/notifications/settings/",
    )


def _value(value: Any, zone: ZoneInfo) -> str:
    if isinstance(value, dict):
        return exact(datetime.fromisoformat(value["at"]).astimezone(zone))
    return "no end" if value is None else str(value)


def _more(events: Events) -> str:
    return f"And {counted(len(events) - MOST_LISTED, 'more notification')}"


def _mail_part(event: NotificationEvent, zone: ZoneInfo) -> str:
    facts = [f"{name}: {value}" for name, value in facts_of(event, zone)]
    lines = [event.text or event.title, *(["", *facts] if facts else []), "", url_of(event), ""]
    return "\n".join(lines)


def _slack(events: Events) -> dict[str, Any]:
    blocks = [_slack_section(event) for event in events[:MOST_LISTED]]
    if len(events) > MOST_LISTED:
        address = f"{settings.PUBLIC_URL}/notifications/"
        blocks.append(_section(f"<{address}|{_more(events)}>"))
    return {"text": _slack_escaped(title_of(events)), "blocks": blocks}


def _slack_section(event: NotificationEvent) -> dict[str, Any]:
    facts = [f"{_slack_escaped(name)}: {_slack_escaped(value)}" for name, value in facts_of(event, UTC)]
    text = _slack_escaped(event.text[:LONGEST_TEXT])
    head = f"*<{url_of(event)}|{_slack_escaped(event.title)}>*"
    return _section("\n".join([head, *([text] if text else []), *facts]))


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:LONGEST_SECTION]}}


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(events: Events) -> dict[str, Any]:
    """Returns a message for a workflow of Teams that posts when it receives a webhook request."""
    body = [item for event in events[:MOST_LISTED] for item in _card_items(event)]
    if len(events) > MOST_LISTED:
        body.append(_line(_more(events)))
    is_one = len(events) == 1
    address = url_of(events[0]) if is_one else f"{settings.PUBLIC_URL}/notifications/"
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
        "actions": [{"type": "Action.OpenUrl", "title": "Open in Fairlot", "url": address}],
        "msteams": {"width": "Full"},
    }
    content_type = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": content_type, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _card_items(event: NotificationEvent) -> list[dict[str, Any]]:
    items = [_line(event.title, size="Medium", weight="Bolder")]
    if event.text:
        items.append(_line(event.text[:LONGEST_TEXT]))
    facts = [{"title": name, "value": _card_escaped(value)} for name, value in facts_of(event, UTC)]
    return [*items, *([{"type": "FactSet", "facts": facts}] if facts else [])]


def _line(text: str, **more: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": _card_escaped(text), "wrap": True} | more


def _card_escaped(text: str) -> str:
    return MARKDOWN.sub(r"\\\1", text)


def _webhook(events: Events) -> dict[str, Any]:
    if len(events) == 1:
        return _as_json(events[0])
    return {"event": "digest", "events": [_as_json(event) for event in events]}


def _as_json(event: NotificationEvent) -> dict[str, Any]:
    return {
        "event": event.kind,
        "id": event.key,
        "title": event.title,
        "text": event.text,
        "facts": dict(facts_of(event, UTC)),
        "team": event.tenant.slug if event.tenant else None,
        "job": event.job_id,
        "url": url_of(event),
        "at": event.at.isoformat() if isinstance(event.at, datetime) else None,
    }
