"""Django's PostgreSQL backend, changed so that the check of a connection sends no query."""
