from django.urls import path

from portal.tokens import views

urlpatterns = [
    path("account/tokens/", views.tokens, name="tokens"),
    path("account/tokens/terminal/", views.terminal, name="token_terminal"),
    path("account/tokens/revoke/", views.revoke_every, name="revoke_all_tokens"),
    path("account/tokens/<int:pk>/revoke/", views.revoke, name="revoke_token"),
]
