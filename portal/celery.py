"""The Celery app of the portal."""

import os
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun

from scheduling.core.safe_streams import outlive_full_disks

outlive_full_disks()

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
# Django's system checks would import every page, which a worker does not need. `make lint` makes these checks.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("fairlot")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@task_prerun.connect
@task_postrun.connect
def keep_only_good_connections(**kwargs: Any) -> None:
    """Closes a database connection that is broken or older than CONN_MAX_AGE; the next query reconnects.

    Called before and after each task.
    """
    from django.db import close_old_connections  # noqa: PLC0415 - needs the settings

    close_old_connections()
