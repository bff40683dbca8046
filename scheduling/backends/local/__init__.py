"""The local backend, which runs a cluster's jobs as processes on one trusted machine.

Every gang has one small supervisor process (`shim.py`), which outlives the process that started it. The backend
(`backend.py`) gives orders and reads reports through files (`files.py`), so any number of portal processes may start
and end meanwhile. Nothing here imports Django, and the supervisor imports only what it needs.
"""
