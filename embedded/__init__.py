"""Runs Fairlot on one machine: PostgreSQL and Valkey from wheels, and the supervisor of all processes.

Nothing here imports Django or the portal, because this package must work before they can be imported.
"""
