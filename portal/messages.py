"""Messages that know which form they answer, so that pages show them beside it."""

from __future__ import annotations

from django.contrib.messages.storage.fallback import FallbackStorage


class Storage(FallbackStorage):
    """Stores the address to which the form was sent; static/js/app.js finds the form by it."""

    def add(self, level: int, message: str, extra_tags: str | None = "") -> None:
        super().add(level, message, extra_tags or self.request.get_full_path())
