from django.urls import path, re_path

from portal.reports import capacity, exports, fairness, idle, idle_tables, views
from portal.reports.operations import views as operations
from portal.reports.statement import views as statement

urlpatterns = [
    path("usage/", views.usage, name="usage"),
    re_path(r"^usage\.(?P<form>csv|xlsx|pdf|json)$", views.usage_file, name="usage_file"),
    path("usage/statement/", statement.statement, name="usage_statement"),
    path("usage/statement.csv", statement.statement_file, {"form": "csv"}, name="usage_statement_csv"),
    path("usage/statement.xlsx", statement.statement_file, {"form": "xlsx"}, name="usage_statement_xlsx"),
    path("usage/statement.pdf", statement.statement_file, {"form": "pdf"}, name="usage_statement_pdf"),
    path("usage/statement.json", statement.statement_file, {"form": "json"}, name="usage_statement_json"),
    path("usage/capacity/", capacity.capacity, name="usage_capacity"),
    re_path(
        r"^usage/capacity\.(?P<form>csv|xlsx|pdf|json)$", capacity.capacity_file, name="usage_capacity_file"
    ),
    path("usage/idle/", idle.idle, name="usage_idle"),
    re_path(r"^usage/idle\.(?P<form>csv|xlsx|pdf|json)$", idle_tables.idle_file, name="usage_idle_file"),
    path("usage/fairness/", fairness.fairness, name="usage_fairness"),
    re_path(
        r"^usage/fairness\.(?P<form>csv|xlsx|pdf|json)$", fairness.fairness_file, name="usage_fairness_file"
    ),
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
