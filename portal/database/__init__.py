"""Django's PostgreSQL backend, with a check of the connection that sends no query."""
