"""Django's backend of PostgreSQL, which looks at its connection before it uses it instead of asking."""
