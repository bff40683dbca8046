"""Everything Fairlot needs on one machine: PostgreSQL and Valkey from wheels, and who starts what.

Nothing here imports Django or the portal: this package must work before either can.
"""
