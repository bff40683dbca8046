"""Sessions of signed-in browsers, in the database, read in one short statement.

Every page reads one, so that a login that ends anywhere has ended everywhere at once.
"""

from __future__ import annotations

from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.db import connections, router
from django.utils import timezone

READ = "SELECT session_data, expire_date FROM django_session WHERE session_key = %s AND expire_date > %s"


class SessionStore(db.SessionStore):
    """Django's own, without building a query anew for each page."""

    @classmethod
    def get_model_class(cls) -> type[Session]:
        return Session

    def _get_session_from_db(self) -> Session | None:
        with connections[router.db_for_read(Session)].cursor() as cursor:
            cursor.execute(READ, [self.session_key, timezone.now()])
            found = cursor.fetchone()
        if found is None:
            self._session_key = None
            return None
        return Session(self.session_key, *found)
