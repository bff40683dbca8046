"""The work that a server process does once, before its first request."""

from __future__ import annotations

import gc
import logging
import threading
import time

from django.db import Error, connection
from django.urls import get_resolver

from portal import middleware

logger = logging.getLogger(__name__)

# How long the server's start waits for the database, and the interval between two attempts to reach it.
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 2.0


def load_pages() -> None:
    """Imports all views, and exempts all objects that exist at this point from garbage collection.

    If they were not exempt, each full collection would scan these objects, and delay requests by a sixth of a second.
    """
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()


def start_local_cluster_check() -> threading.Thread:
    """Starts a thread that asks the database whether a local cluster exists. Returns the thread.

    If one exists, the portal refuses clients on other machines unless FAIRLOT_LOCAL_BEYOND_LOOPBACK is set. Until the
    answer arrives, the portal assumes that one exists, and serves static files only to clients on this machine.

    Waits at most LOOK_SECONDS for the answer. After that the thread keeps trying.
    """
    # A server may import the portal inside its event loop, where Django allows no queries.
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
        except Exception as error:  # the first request asks the database again
            logger.warning("could not ask for a local cluster: %r", error)
            return
        finally:
            connection.close()
