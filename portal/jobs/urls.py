from django.urls import path

from portal.jobs import bill, comparing, editing, file_views, log_views, metrics, selection, storage, views
from portal.jobs.columns import COLUMNS
from portal.jobs.filters import PARAMETERS, JobFilter
from portal.lists.choices import columns_view
from portal.lists.views import view_pages

urlpatterns = [
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/selected/", selection.selected, name="jobs_selected"),
    path("jobs/columns/", columns_view("jobs", COLUMNS), name="jobs_columns"),
    *view_pages("jobs", "jobs", PARAMETERS, COLUMNS, lambda query: JobFilter.read(query).chips()),
    path("jobs/<int:pk>/", views.job, name="job"),
    path("jobs/<int:pk>/edit/", editing.edit, name="job_edit"),
    path("jobs/<int:pk>/log/", log_views.log, name="job_log"),
    path("jobs/<int:pk>/log/stream", log_views.log_stream, name="job_log_stream"),
    path("jobs/<int:pk>/log/piece", log_views.log_piece, name="job_log_piece"),
    path("jobs/<int:pk>/log/search", log_views.log_search, name="job_log_search"),
    path("jobs/<int:pk>/log/raw", log_views.log_raw, name="job_log_raw"),
    path("jobs/<int:pk>/metrics/", metrics.metrics, name="job_metrics"),
    path("jobs/<int:pk>/files/", file_views.files, name="job_files"),
    path("jobs/<int:pk>/files/file/", file_views.file, name="job_file"),
    path("jobs/<int:pk>/files/raw", file_views.raw, name="job_file_raw"),
    path("jobs/<int:pk>/files/image", file_views.image, name="job_file_image"),
    path("jobs/<int:pk>/files/archive", file_views.archive, name="job_files_archive"),
    path("jobs/<int:pk>/files/results", file_views.results, name="job_results"),
    path("jobs/<int:pk>/files/delete/", storage.delete, name="job_files_delete"),
    path("storage/", storage.storage, name="storage"),
    path("jobs/<int:pk>/events/", views.events, name="job_events"),
    path("jobs/<int:pk>/bill/", bill.bill, name="job_bill"),
    path("jobs/<int:pk>/bill/correct/", bill.correct, name="job_bill_correct"),
    path("jobs/<int:pk>/spec/", views.spec, name="job_spec"),
    path("jobs/<int:pk>/compare/", views.compare_with, name="job_compare_with"),
    path("jobs/<int:pk>/compare/<int:other>/", comparing.compare, name="job_compare"),
    path("jobs/<int:pk>/sharing/", views.sharing, name="job_sharing"),
    path("jobs/<int:pk>/snooze/", views.snooze, name="job_snooze"),
    path("jobs/<int:pk>/remedy/", views.remedy, name="job_remedy"),
    path("jobs/<int:pk>/cancel/", views.cancel, name="job_cancel"),
]
