from django.urls import path

from portal.live import views

urlpatterns = [
    path("live", views.live, name="live"),
    path("healthz", views.healthz, name="healthz"),
]
