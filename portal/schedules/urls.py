from django.urls import path

from portal.schedules import editing, views
from portal.schedules.listing import SCHEDULES

urlpatterns = [
    *SCHEDULES.urls,
    path("schedules/new/", editing.new, name="schedule_new"),
    path("schedules/preview/", editing.preview, name="schedule_preview"),
    path("schedules/<int:pk>/", views.schedule, name="schedule"),
    path("schedules/<int:pk>/edit/", editing.edit, name="schedule_edit"),
    path("schedules/<int:pk>/run/", views.run, name="schedule_run"),
    path("schedules/<int:pk>/pause/", views.pause, name="schedule_pause"),
    path("schedules/<int:pk>/resume/", views.resume, name="schedule_resume"),
    path("schedules/<int:pk>/delete/", views.delete, name="schedule_delete"),
]
