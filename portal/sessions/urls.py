from django.urls import path

from portal.sessions import editing, views
from portal.sessions.listing import SESSIONS

urlpatterns = [
    *SESSIONS.urls,
    path("sessions/new/", editing.new, name="session_new"),
    path("sessions/<int:pk>/", views.session, name="session"),
    path("sessions/<int:pk>/open/", views.enter, name="session_open"),
    path("sessions/<int:pk>/keep/", views.keep, name="session_keep"),
    path("sessions/<int:pk>/stop/", views.stop, name="session_stop"),
]
