from django.urls import path

from portal.reports import capacity, fairness, idle, views

urlpatterns = [
    path("usage/", views.usage, name="usage"),
    path("usage.csv", views.usage_csv, name="usage_csv"),
    path("usage/capacity/", capacity.capacity, name="usage_capacity"),
    path("usage/capacity.csv", capacity.capacity_csv, name="usage_capacity_csv"),
    path("usage/idle/", idle.idle, name="usage_idle"),
    path("usage/fairness/", fairness.fairness, name="usage_fairness"),
    path("usage/fairness.csv", fairness.fairness_csv, name="usage_fairness_csv"),
    path("usage/fairness/weights/<int:pk>/", fairness.set_weight, name="usage_generation_weight"),
]
