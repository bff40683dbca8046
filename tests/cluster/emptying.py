"""Cleans up everything that would hold GPUs of the next test."""

from __future__ import annotations

from tests.cluster.api import JOBS, PODS, Api
from tests.waiting import wait_for


def remove(admin: Api, name: str) -> None:
    """Deletes a namespace once nothing in it holds GPUs of the next test."""
    admin.delete(JOBS.format(name), propagationPolicy="Background")
    admin.delete(f"/api/v1/namespaces/{name}")
    wait_for(lambda: is_emptied(admin, PODS.format(name)), what=f"{name} has no pods", every=0.2)


def is_emptied(admin: Api, pods: str) -> bool:
    """Returns whether no pod holds GPUs of the next test, however long the pods would take to stop."""
    left = admin.items(pods)
    if left:
        admin.delete(pods, gracePeriodSeconds=0)
    return not left
