from django.urls import path

from portal.subscriptions import views

urlpatterns = [
    path("usage/by-mail/subscribe/", views.subscribe, name="usage_report_subscribe"),
    path("usage/by-mail/unsubscribe/<int:pk>/", views.unsubscribe, name="usage_report_unsubscribe"),
]
