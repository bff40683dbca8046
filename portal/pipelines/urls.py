from django.urls import path

from portal.pipelines import editing, views
from portal.pipelines.listing import PIPELINES

urlpatterns = [
    *PIPELINES.urls,
    path("pipelines/new/", editing.new, name="pipeline_new"),
    path("pipelines/preview/", editing.preview, name="pipeline_preview"),
    path("pipelines/<int:pk>/", views.pipeline, name="pipeline"),
    path("pipelines/<int:pk>/cancel/", views.cancel, name="pipeline_cancel"),
    path("pipelines/<int:pk>/run-again/", views.again, name="pipeline_run_again"),
]
