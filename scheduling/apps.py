from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from accounting.access import audit  # noqa: PLC0415 - all of these import models
        from scheduling.core.enqueue import want_rounds_after  # noqa: PLC0415
        from scheduling.leases.verification import register  # noqa: PLC0415

        audit.listeners.append(want_rounds_after)
        register()
