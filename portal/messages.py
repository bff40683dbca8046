"""Messages that name the form to which they respond, so that the page shows a message beside its form."""

from __future__ import annotations

from django.contrib.messages.storage.fallback import FallbackStorage


class Storage(FallbackStorage):
    """Message storage that adds to each message the URL of the request, to which the form was sent.

    static/js/app.js finds the form by this URL.
    """

    def add(self, level: int, message: str, extra_tags: str | None = "") -> None:
        super().add(level, message, extra_tags or self.request.get_full_path())
