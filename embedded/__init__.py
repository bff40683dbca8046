"""Runs Fairlot on one machine: PostgreSQL and Valkey from Python wheels, and a supervisor for all processes.

Only embedded/prepare.py imports Django. All other modules must work before Django and the portal can be imported.
"""
