from django.urls import path

from portal.secrets import views

urlpatterns = [
    path("account/secrets/", views.secrets, name="secrets"),
    path("account/secrets/<int:pk>/", views.secret, name="secret"),
    path("account/secrets/<int:pk>/delete/", views.delete, name="secret_delete"),
]
