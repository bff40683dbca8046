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

# How long the first request waits for the database, and the interval at which it is asked again.
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 2.0


def load_pages() -> None:
    """Loads all pages, and exempts what stays from garbage collection.

    Scanning it repeatedly would delay requests by a sixth of a second.
    """
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()


def look_around() -> threading.Thread:
    """Finds out whether there is a local cluster; until then static files are served to this machine only.

    It waits a moment for the answer. If the database is away, the thread keeps asking while the server starts. It is
    a separate thread because a server may load the portal in its event loop.
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
        except Exception as error:  # on any error, the first page asks again
            logger.warning("could not ask for a local cluster: %r", error)
            return
        finally:
            connection.close()
