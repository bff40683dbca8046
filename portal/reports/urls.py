from django.urls import path

from portal.reports import capacity, views

urlpatterns = [
    path("usage/", views.usage, name="usage"),
    path("usage.csv", views.usage_csv, name="usage_csv"),
    path("usage/capacity/", capacity.capacity, name="usage_capacity"),
    path("usage/capacity.csv", capacity.capacity_csv, name="usage_capacity_csv"),
]
