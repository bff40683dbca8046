from django.urls import path

from portal.tokens import views

urlpatterns = [
    path("account/tokens/", views.tokens, name="tokens"),
    path("account/tokens/<int:pk>/revoke/", views.revoke, name="revoke_token"),
]
