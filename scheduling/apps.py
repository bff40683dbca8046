from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from accounting.access import audit  # noqa: PLC0415 - all of these import models
        from accounting.notifications import events, unread  # noqa: PLC0415
        from scheduling.core.enqueue import wake_notifications, want_rounds_after  # noqa: PLC0415
        from scheduling.core.pubsub import publish_unread  # noqa: PLC0415
        from scheduling.leases.verification import register  # noqa: PLC0415

        audit.listeners.append(want_rounds_after)
        events.listeners.append(wake_notifications)
        unread.listeners.append(publish_unread)
        register()
