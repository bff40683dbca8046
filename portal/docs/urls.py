from django.urls import path

from portal.docs import views

urlpatterns = [
    path("docs/", views.page, name="docs"),
    path("docs/pictures/<str:name>", views.picture, name="docs_picture"),
    path("docs/<str:name>/", views.page, name="docs_page"),
]
