"""All URLs of the portal. Each package has its own list, with complete paths. URL names have no namespace."""

from django.urls import include, path

from portal import errors

# Django tries the packages in this order, so the most requested ones come first.
SUBJECTS = (
    "home", "notifications",
    "api", "jobs", "cluster", "share", "reports", "live", "submit", "sessions", "services", "schedules",
    "sweeps", "pipelines", "drafts", "gallery", "terminals", "account", "tokens", "secrets", "requests",
    "subscriptions",
    "administration", "invitations", "announcements", "reservations", "docs",
)  # fmt: skip

urlpatterns = [path("", include(f"portal.{subject}.urls")) for subject in SUBJECTS]

handler400 = errors.bad_request
handler403 = errors.forbidden
handler404 = errors.not_found
handler500 = errors.server_error
