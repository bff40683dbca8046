from django.urls import path, re_path

from portal.reports import capacity, exports, fairness, views
from portal.reports.operations import views as operations

urlpatterns = [
    path("usage/", views.usage, name="usage"),
    path("usage.csv", views.usage_csv, name="usage_csv"),
    path("usage/capacity/", capacity.capacity, name="usage_capacity"),
    path("usage/capacity.csv", capacity.capacity_csv, name="usage_capacity_csv"),
    path("usage/fairness/", fairness.fairness, name="usage_fairness"),
    path("usage/fairness.csv", fairness.fairness_csv, name="usage_fairness_csv"),
    path("usage/fairness/weights/<int:pk>/", fairness.set_weight, name="usage_generation_weight"),
    path("usage/operations/", operations.operations, name="usage_operations"),
    path("usage/operations/<slug:subject>/", operations.operations, name="usage_operations_subject"),
    re_path(
        r"^usage/operations/(?P<subject>\w+)\.(?P<form>csv|xlsx|pdf|json)$",
        operations.operations_file,
        name="usage_operations_file",
    ),
    re_path(
        r"^usage/(?P<subject>chargeback)\.(?P<form>csv|xlsx|pdf|json)$",
        operations.operations_file,
        name="usage_chargeback_file",
    ),
    re_path(
        r"^usage/(?P<form>sacct\.txt|xdmod\.txt|jobs\.csv|jobs\.json)$", exports.export, name="usage_export"
    ),
]
