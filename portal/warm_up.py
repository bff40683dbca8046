"""What a server does once before its first request."""

from __future__ import annotations

import gc
import logging
import threading
import time

from django.db import Error, connection
from django.urls import get_resolver

from portal import middleware

logger = logging.getLogger(__name__)

# How long the database is waited for before the first request, and after how long it is asked again.
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 2.0


def load_pages() -> None:
    """Loads all pages, and lets the garbage collector forget what stays for ever.

    It would else look through all of that again and again, which keeps a request waiting for a sixth of a second.
    """
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()


def look_around() -> threading.Thread:
    """Learns whether there is a local cluster, as static files are not served beyond this machine before.

    Waits a moment for the answer. While the database is away, the thread goes on asking and the server starts.
    It is a thread of its own, since a server may load the portal in its event loop.
    """
    thread = threading.Thread(target=_learn, name="warm-up", daemon=True)
    thread.start()
    thread.join(LOOK_SECONDS)
    return thread


def _learn() -> None:
    while not middleware.knows_of_local_cluster():
        try:
            middleware.learn_of_local_cluster()
        except Error:
            time.sleep(AGAIN_SECONDS)
        except Exception as error:  # whatever it is, the first page asks again
            logger.warning("could not ask for a local cluster: %r", error)
            return
        finally:
            connection.close()
