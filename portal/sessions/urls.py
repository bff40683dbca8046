from django.urls import path

from portal.sessions import views

urlpatterns = [
    path("sessions/<int:pk>/open/", views.enter, name="session_open"),
]
