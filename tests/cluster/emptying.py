"""Deletes namespaces and waits until their pods are gone, so that the pods hold no GPUs in the next test."""

from __future__ import annotations

from tests.cluster.api import JOBS, PODS, Api
from tests.waiting import wait_for


def remove(admin: Api, name: str) -> None:
    """Deletes a namespace and its Jobs, and waits until its pods no longer hold GPUs."""
    admin.delete(JOBS.format(name), propagationPolicy="Background")
    admin.delete(f"/api/v1/namespaces/{name}")
    wait_for(lambda: is_emptied(admin, PODS.format(name)), what=f"{name} has no pods", every=0.2)


def is_emptied(admin: Api, pods: str) -> bool:
    """Returns whether there are no pods at the API path `pods`. If there are some, deletes them without a grace
    period."""
    left = admin.items(pods)
    if left:
        admin.delete(pods, gracePeriodSeconds=0)
    return not left
