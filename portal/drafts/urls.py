from django.urls import path

from portal.drafts import views

urlpatterns = [
    path("drafts/", views.drafts, name="drafts"),
    path("drafts/<int:pk>/delete/", views.delete, name="draft_delete"),
]
