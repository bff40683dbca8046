"""Deletes old notifications and events."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from accounting.models import Notification, NotificationEvent, NotificationItem
from accounting.notifications.unread import lock_readers, recount

KEPT_READ = timedelta(days=30)  # after they were read
KEPT = timedelta(days=180)  # even if nobody read them
AT_ONCE = 1000


def forget_notifications() -> None:
    """Deletes notifications that were read KEPT_READ ago, all that are older than KEPT, and events that nothing refers
    to any more."""
    while _forget_notifications():
        pass
    while _forget_events():
        pass


@transaction.atomic(durable=True)
def _forget_notifications() -> int:
    old = Notification.objects.filter(read_at__lt=Now() - KEPT_READ) | Notification.objects.filter(
        at__lt=Now() - KEPT
    )
    found = dict(old.order_by("pk").values_list("pk", "user")[:AT_ONCE])
    readers = lock_readers(set(found.values()))
    Notification.objects.filter(pk__in=found).delete()
    recount(readers)
    return len(found)


@transaction.atomic(durable=True)
def _forget_events() -> int:
    """Deletes events whose items are no longer waiting and that no bell shows. Young events stay, because their keys
    keep a repeated change from announcing them again."""
    shown = Notification.objects.filter(event=OuterRef("pk"))
    waiting = NotificationItem.objects.filter(event=OuterRef("pk"), composed_at=None)
    old = NotificationEvent.objects.filter(at__lt=Now() - KEPT_READ, routed_at__isnull=False)
    kept = old.exclude(Exists(shown)).exclude(Exists(waiting), at__gte=Now() - KEPT)
    found = list(kept.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
    NotificationEvent.objects.filter(pk__in=found).delete()
    return len(found)
