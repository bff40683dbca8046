"""Stores Django's messages to the user, each with the form that caused it, so that the page shows it beside this
form."""

from __future__ import annotations

from django.contrib.messages.storage.fallback import FallbackStorage


class Storage(FallbackStorage):
    """Message storage that adds to each message the URL of the request, which is the URL to which the form was posted.

    static/js/app.js finds the form by this URL.
    """

    def add(self, level: int, message: str, extra_tags: str | None = "") -> None:
        super().add(level, message, extra_tags or self.request.get_full_path())
