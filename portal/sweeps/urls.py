from django.urls import path

from portal.sweeps import editing, views
from portal.sweeps.listing import SWEEPS

urlpatterns = [
    *SWEEPS.urls,
    path("sweeps/new/", editing.new, name="sweep_new"),
    path("sweeps/preview/", editing.preview, name="sweep_preview"),
    path("sweeps/<int:pk>/", views.sweep, name="sweep"),
    path("sweeps/<int:pk>/members.csv", views.members_csv, name="sweep_csv"),
    path("sweeps/<int:pk>/cancel/", views.cancel, name="sweep_cancel"),
    path("sweeps/<int:pk>/run-failed/", views.run_failed, name="sweep_run_failed"),
]
