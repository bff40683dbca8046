"""Backends, which run jobs on clusters: the common interface (`base.py`) and one package per implementation.

This file imports nothing, because the supervisor process of each local job imports this package and must stay small.
"""
