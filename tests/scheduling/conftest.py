"""Fixtures of the scheduling room."""

from tests.scheduling.local_rig import rig

__all__ = ["rig"]
