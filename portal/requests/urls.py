from django.urls import path, re_path

from portal.requests import asking, views

urlpatterns = [
    path("requests/", views.requests, name="requests"),
    path("requests/<int:pk>/", views.request_page, name="request"),
    path("requests/<int:pk>/approve/", views.approve, name="request_approve"),
    path("requests/<int:pk>/preview/", views.preview_answer, name="request_preview"),
    re_path(r"^requests/(?P<pk>\d{1,18})/(?P<verb>decline|withdraw)/$", views.close, name="request_close"),
    path("requests/<int:pk>/extend/", asking.extend, name="request_extend"),
    path("team/<slug:slug>/ask/", asking.new, name="request_new"),
    re_path(r"^team/(?P<slug>[-\w]+)/ask/(?P<verb>tickets|limit|team)/$", asking.ask_for, name="request_ask"),
    re_path(
        r"^team/(?P<slug>[-\w]+)/ask/(?P<verb>tickets|limit)/preview/$",
        asking.preview_request,
        name="request_ask_preview",
    ),
]
