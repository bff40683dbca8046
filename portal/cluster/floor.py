"""Who holds which GPU now, as a given user may know it: others' names stay theirs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from accounting.models import Generation, User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from accounting.prepared import Prepared
from scheduling.models import Cluster, HeldGpu, Job, Node

FREE, OWN, OTHER, AWAY = "free", "own", "other", "away"


@dataclass(frozen=True)
class Cell:
    """Neighbouring GPUs of one node in the same hands; of other teams always one GPU at a time."""

    kind: str
    first: int
    span: int = 1
    job: Job | None = None  # only of tenants that the user may see

    @property
    def gpus(self) -> str:
        return f"GPU {self.first}" if self.span == 1 else f"GPUs {self.first}–{self.first + self.span - 1}"

    @property
    def series(self) -> int:
        """The number of the job's colour."""
        return self.job.pk % 6 + 1 if self.job else 0


@dataclass(frozen=True)
class NodeRow:
    node: Node
    cells: list[Cell]


@dataclass
class GenerationRow:
    """The nodes of one generation and how many of their GPUs are in which hands."""

    generation: Generation
    nodes: list[NodeRow] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((FREE, OWN, OTHER, AWAY), 0))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def busy(self) -> int:
        return self.counts[OWN] + self.counts[OTHER]


def read_floor(cluster: Cluster, user: User) -> list[GenerationRow]:
    """All nodes of `cluster` by generation. A fixed number of queries, however large the cluster."""
    seen = None if sees_every_tenant(user) else set(ids_with_role(user))
    holders: dict[int, dict[int, Job]] = defaultdict(dict)
    for gpu in _held(cluster.pk):
        holders[gpu.node_id][gpu.gpu_index] = gpu.lease.job
    rows: dict[int, GenerationRow] = {}
    for node in _nodes(cluster.pk):
        row = rows.setdefault(node.generation_id, GenerationRow(node.generation))
        cells = _cells(node, holders[node.pk], seen)
        for cell in cells:
            row.counts[cell.kind] += cell.span
        row.nodes.append(NodeRow(node, cells))
    return list(rows.values())


# Of the jobs only what the page shows.
_held = Prepared(
    lambda cluster: HeldGpu.objects.filter(
        lease__cluster=cluster, during__isnull=False, during__endswith__isnull=True
    )
    .select_related("lease__job__tenant", "lease__job__owner")
    .only(
        "node_id", "gpu_index", "lease__job__name", "lease__job__tenant__name", "lease__job__owner__username",
    )
)  # fmt: skip
_nodes = Prepared(
    lambda cluster: (
        Node.objects.filter(cluster=cluster).select_related("generation").order_by("generation__name", "name")
    )
)


def _cells(node: Node, holders: dict[int, Job], seen: set[int] | None) -> list[Cell]:
    cells: list[Cell] = []
    for index in range(node.gpus):
        job = holders.get(index)
        if job is None:
            kind = FREE if node.state == Node.State.READY else AWAY
        elif seen is None or job.tenant_id in seen:
            kind = OWN
        else:
            kind, job = OTHER, None
        last = cells[-1] if cells else None
        if kind == OWN and last and last.job and last.job.pk == job.pk:
            cells[-1] = Cell(OWN, last.first, last.span + 1, job)
        else:
            cells.append(Cell(kind, index, 1, job))
    return cells
