from django.urls import path

from portal.submit import schema, views

urlpatterns = [
    path("submit/", views.submit, name="submit"),
    path("submit/convert/", views.convert, name="convert_spec"),
    path("schemas/job/v1.json", schema.job_schema, name="job_schema"),
]
