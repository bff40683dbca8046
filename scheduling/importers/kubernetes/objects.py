"""The other objects of a file, to which the objects that run programs refer: ConfigMaps, Secrets and runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from scheduling.importers.fields import Fields

# By kind, what becomes of an object that runs nothing.
OTHERS = {
    "ConfigMap": "Its values are used where a job refers to them as variables. The object itself is not imported.",
    "Secret": "Secrets are never imported. Store them in your menu under Secrets, with the same names and keys.",
    "Service": "Fairlot gives workers host names itself.",
    "PersistentVolumeClaim": "Volumes are not imported. Ask an operator to grant your team a volume with this name.",
    "PersistentVolume": "Volumes are not imported. Ask an operator to grant your team a volume.",
    "Namespace": "Each team has its own namespace in Fairlot.",
    "ServiceAccount": "Jobs run with an account without rights in the cluster.",
    "Role": "Jobs have no rights in the cluster.",
    "RoleBinding": "Jobs have no rights in the cluster.",
    "ClusterRole": "Jobs have no rights in the cluster.",
    "ClusterRoleBinding": "Jobs have no rights in the cluster.",
    "PriorityClass": "Priorities of the cluster are not imported.",
    "LocalQueue": "Queues are not imported: Fairlot schedules jobs by the shares of teams.",
    "ClusterQueue": "Queues are not imported: Fairlot schedules jobs by the shares of teams.",
    "ResourceFlavor": "Queues are not imported: Fairlot schedules jobs by the shares of teams.",
    "Queue": "Queues are not imported: Fairlot schedules jobs by the shares of teams.",
    "WorkloadPriorityClass": "Priorities of the cluster are not imported.",
    "PodGroup": "All workers of a job start together anyway.",
    "TrainingRuntime": "It is used by the jobs of this file that refer to it.",
    "ClusterTrainingRuntime": "It is used by the jobs of this file that refer to it.",
    "Ingress": "Only the workload is imported.",
    "NetworkPolicy": "Fairlot separates the jobs of different teams itself.",
    "ResourceQuota": "Limits of teams are set in Fairlot.",
    "LimitRange": "Limits of teams are set in Fairlot.",
    "PodDisruptionBudget": "Fairlot decides when a job is interrupted.",
    "ServiceMonitor": "Fairlot measures GPUs itself.",
    "HorizontalPodAutoscaler": "Services have a fixed number of replicas.",
}


@dataclass(frozen=True)
class Objects:
    """The objects of a file, by kind and name."""

    found: dict[tuple[str, str], Fields]
    known_generations: Sequence[str]

    @classmethod
    def of(cls, roots: Sequence[Fields], known_generations: Sequence[str]) -> Self:
        found = {(root.text("kind"), root.section("metadata").text("name")): root for root in roots}
        return cls(found, known_generations)

    def config_map(self, name: str) -> Fields | None:
        """Returns the data of a ConfigMap of the file."""
        found = self.found.get(("ConfigMap", name))
        return found.section("data") if found else None

    def secret_keys(self, name: str) -> list[str] | None:
        """Returns the keys of a Secret of the file."""
        found = self.found.get(("Secret", name))
        return [*found.section("data"), *found.section("stringData")] if found else None

    def runtime(self, name: str) -> Fields | None:
        """Returns a training runtime of the file."""
        return self.found.get(("TrainingRuntime", name)) or self.found.get(("ClusterTrainingRuntime", name))
