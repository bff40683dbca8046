from django.urls import path

from portal.terminals import views

# portal/terminals/sockets.py answers /jobs/…/terminal/socket, which is a WebSocket and no page.
urlpatterns = [
    path("jobs/<int:pk>/terminal/", views.terminal, name="job_terminal"),
    path("jobs/<int:pk>/terminal/<uuid:key>/end/", views.end, name="job_terminal_end"),
]
