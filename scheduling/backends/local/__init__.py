"""The local backend: a cluster's jobs as real processes on one trusted machine.

Every gang has one small supervisor process (`shim.py`) that outlives whoever started it. The backend
(`backend.py`) gives orders and reads reports through files (`files.py`), so that any number of portal
processes may come and go. Nothing here imports Django, and the supervisor imports only what it needs.
"""
