"""All URLs: each subject of the portal brings its own, with whole paths and plain names."""

from django.urls import include, path

from portal import errors

# The most requested ones first, because they are tried in this order.
SUBJECTS = (
    "home", "api", "jobs", "cluster", "share", "reports", "live", "submit", "sessions", "services", "schedules",
    "account", "tokens", "secrets", "requests", "subscriptions", "administration", "docs",
)  # fmt: skip

urlpatterns = [path("", include(f"portal.{subject}.urls")) for subject in SUBJECTS]

handler400 = errors.bad_request
handler403 = errors.forbidden
handler404 = errors.not_found
handler500 = errors.server_error
