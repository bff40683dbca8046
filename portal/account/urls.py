from django.urls import path

from portal.account import limits, views

urlpatterns = [
    path("account/login/", views.Login.as_view(), name="login"),
    path("account/logout/", views.Logout.as_view(), name="logout"),
    path("account/password/", views.PasswordChange.as_view(), name="password_change"),
    path("account/password/done/", views.password_changed, name="password_change_done"),
    path("account/limits/", limits.own_limits, name="own_limits"),
    path("account/preferences/", views.preferences, name="preferences"),
]
