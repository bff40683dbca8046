"""What a server does once before its first request."""

from __future__ import annotations

import gc

from django.urls import get_resolver


def settle() -> None:
    """Loads all pages, and lets the garbage collector forget what stays for ever.

    It would else look through all of that again and again, which keeps a request waiting for a sixth of a second.
    """
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()
