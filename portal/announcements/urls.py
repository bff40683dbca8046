from django.urls import path, re_path

from portal.announcements import views

urlpatterns = [
    path("announcements/<int:pk>/dismiss/", views.dismiss, name="announcement_dismiss"),
    path("admin/announcements/", views.announcements, name="admin_announcements"),
    path("admin/announcements/create/", views.create, name="admin_announcement_create"),
    path("admin/announcements/<int:pk>/", views.announcement, name="admin_announcement"),
    re_path(
        r"^admin/announcements/(?P<pk>\d{1,18})/(?P<verb>change|withdraw)/$",
        views.change,
        name="admin_announcement_change",
    ),
]
