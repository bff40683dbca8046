"""The interface to clusters (`base.py`) and its implementations, one package each.

This file imports nothing, because the supervisors of local jobs import it and must stay small.
"""
