from django.urls import path

from portal.submit import views

urlpatterns = [
    path("submit/", views.submit, name="submit"),
    path("submit/convert/", views.convert, name="convert_spec"),
]
