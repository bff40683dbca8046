from django.urls import path

from portal.administration.place import both
from portal.invitations import views

urlpatterns = [
    path("invitations/<str:token>/", views.invitation, name="invitation"),
    *both("invitations/", views.invitations, "invitations"),
    *both("invitations/create/", views.create, "invitation_create"),
    *both("invitations/<int:pk>/revoke/", views.revoke, "invitation_revoke"),
]
