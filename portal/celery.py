"""The Celery app: where tasks are found, queued and repeated."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

app = Celery("fairlot")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
