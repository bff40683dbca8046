from django.urls import path

from portal.invitations import views

urlpatterns = [
    path("invitations/<str:token>/", views.invitation, name="invitation"),
    path("team/<slug:slug>/invitations/create/", views.create, name="team_invitation_create"),
    path("team/<slug:slug>/invitations/<int:pk>/revoke/", views.revoke, name="team_invitation_revoke"),
]
