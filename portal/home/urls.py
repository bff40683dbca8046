from django.urls import path

from portal.home import security, views

urlpatterns = [
    path("", views.home, name="home"),
    path(".well-known/security.txt", security.security_txt, name="security_txt"),
]
