from django.urls import path

from portal.notifications import views

urlpatterns = [
    path("notifications/", views.notifications, name="notifications"),
    path("notifications/bell/", views.bell, name="notification_bell"),
    path("notifications/mark/", views.mark, name="notifications_mark"),
    path("notifications/<int:pk>/open/", views.open_one, name="notification_open"),
    path("notifications/settings/", views.settings, name="notification_settings"),
    path("notifications/settings/rules/<int:pk>/remove/", views.rule_remove, name="notification_rule_remove"),
    path("notifications/settings/channels/", views.channel_save, name="notification_channel_save"),
    path(
        "notifications/settings/channels/<int:pk>/test/", views.channel_test, name="notification_channel_test"
    ),
    path(
        "notifications/settings/channels/<int:pk>/remove/",
        views.channel_remove,
        name="notification_channel_remove",
    ),
    path("jobs/<int:pk>/follow/", views.follow, name="job_follow"),
]
