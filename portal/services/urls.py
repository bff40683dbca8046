from django.urls import path

from portal.services import editing, views
from portal.services.listing import SERVICES

urlpatterns = [
    *SERVICES.urls,
    path("services/new/", editing.new, name="service_new"),
    path("services/<int:pk>/", views.service, name="service"),
    path("services/<int:pk>/log/", views.log, name="service_log"),
    path("services/<int:pk>/log/raw", views.log_raw, name="service_log_raw"),
    path("services/<int:pk>/open/", views.enter, name="service_open"),
    path("services/<int:pk>/update/", editing.update, name="service_update"),
    path("services/<int:pk>/scale/", views.scale, name="service_scale"),
    path("services/<int:pk>/rollouts/", views.set_rollouts, name="service_rollouts"),
    path("services/<int:pk>/allow-missing/", views.let_one_be_missing, name="service_allow_missing"),
    path("services/<int:pk>/stop/", views.stop, name="service_stop"),
    path("services/<int:pk>/start/", views.start, name="service_start"),
    path("services/<int:pk>/rollback/", views.roll_back, name="service_rollback"),
    path("services/<int:pk>/remove/", views.remove, name="service_remove"),
]
