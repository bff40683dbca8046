"""Stores login sessions in the database, and reads a session with one short statement.

Each page reads the session from the database. So when a login session is deleted, it ends immediately in all web
processes.
"""

from __future__ import annotations

from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.utils import timezone

from accounting.core.statements import Statement

_session = Statement(
    "SELECT session_data, expire_date FROM django_session WHERE session_key = $1 AND expire_date > $2",
    "text",
    "timestamptz",
)


class SessionStore(db.SessionStore):
    """Django's session store, but with a prepared statement. Django would build the query again for each page."""

    @classmethod
    def get_model_class(cls) -> type[Session]:
        return Session

    def _get_session_from_db(self) -> Session | None:
        found = _session.ask([self.session_key, timezone.now()])
        if not found:
            self._session_key = None
            return None
        data, expires = found[0]
        return Session(session_key=self.session_key or "", session_data=data, expire_date=expires)
