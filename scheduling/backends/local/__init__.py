"""The local backend, which runs a cluster's jobs as processes on one trusted machine.

Each gang has one small supervisor process (`shim.py`), which keeps running when the portal process that started it
ends. The backend (`backend.py`) gives orders and reads reports through files (`files.py`). Any number of portal
processes may therefore start and end while jobs run. Nothing here imports Django, and the supervisor imports only what
it needs.
"""
