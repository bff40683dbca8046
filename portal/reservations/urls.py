from django.urls import path

from portal.reservations import views

urlpatterns = [
    path("reservations/", views.reservations, name="reservations"),
    path("reservations/new/", views.new, name="reservation_new"),
    path("reservations/<int:pk>/", views.reservation, name="reservation"),
    path("reservations/<int:pk>/change/", views.change, name="reservation_change"),
    path("reservations/<int:pk>/cancel/", views.cancel, name="reservation_cancel"),
]
