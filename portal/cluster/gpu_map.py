"""Who holds which GPU now, as far as a user may see it: names of other teams' jobs stay hidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from accounting.core.name_order import by_name
from accounting.core.prepared import Prepared
from accounting.models import Generation, Tenant, User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from scheduling.models import Cluster, HeldGpu, Job, Node

FREE, OWN, OTHER, DRAINED, AWAY = "free", "own", "other", "drained", "away"
UNHELD: dict[str, str] = {Node.State.READY: FREE, Node.State.DRAINED: DRAINED}  # by the state of the node
COLOURS = 6  # --series-1 to --series-6


@dataclass(frozen=True)
class Cell:
    """Neighbouring GPUs of one node with the same holder; for hidden teams always one GPU."""

    kind: str
    first: int
    span: int = 1
    job: Job | None = None  # only of tenants that the user may see
    team: int = 0  # the number of the job's team among those that the user sees

    @property
    def gpus(self) -> str:
        return f"GPU {self.first}" if self.span == 1 else f"GPUs {self.first}–{self.first + self.span - 1}"

    @property
    def series(self) -> int:
        """Returns the number of the team's colour."""
        return (self.team - 1) % COLOURS + 1 if self.team else 0


@dataclass(frozen=True)
class Legend:
    """The legend: a cell of each team by its name, and which other kinds of cells there are."""

    teams: list[tuple[str, Cell]]
    kinds: set[str]


@dataclass(frozen=True)
class NodeRow:
    node: Node
    cells: list[Cell]

    @property
    def held(self) -> int:
        """Returns how many of its GPUs are held."""
        return sum(cell.span for cell in self.cells if cell.kind in {OWN, OTHER})


@dataclass
class GenerationRow:
    """The nodes of one generation, and the numbers of their GPUs by kind of holder."""

    generation: Generation
    nodes: list[NodeRow] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((FREE, OWN, OTHER, DRAINED, AWAY), 0)
    )

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def busy(self) -> int:
        return self.counts[OWN] + self.counts[OTHER]


def read_gpu_map(cluster: Cluster, user: User) -> list[GenerationRow]:
    """Returns all nodes of `cluster` by generation, with a fixed number of queries, however large the cluster."""
    teams = _teams(user)
    holders: dict[int, dict[int, Job]] = defaultdict(dict)
    for gpu in _held(cluster.pk):
        holders[gpu.node_id][gpu.gpu_index] = gpu.lease.job
    rows: dict[int, GenerationRow] = {}
    for node in _nodes(cluster.pk):
        row = rows.setdefault(node.generation_id, GenerationRow(node.generation))
        cells = _cells(node, holders[node.pk], teams)
        for cell in cells:
            row.counts[cell.kind] += cell.span
        row.nodes.append(NodeRow(node, cells))
    return list(rows.values())


def legend_of(gpu_maps: Iterable[list[GenerationRow]]) -> Legend:
    cells = [cell for rows in gpu_maps for row in rows for entry in row.nodes for cell in entry.cells]
    teams = {cell.team: (cell.job.tenant.name, cell) for cell in cells if cell.job}
    return Legend([teams[number] for number in sorted(teams)], {cell.kind for cell in cells})


def _teams(user: User) -> dict[int, int]:
    """Returns the tenants that `user` sees, each with a number that stays while jobs come and go."""
    ids = [pk for (pk,) in _every_tenant()] if sees_every_tenant(user) else ids_with_role(user)
    return {pk: number for number, pk in enumerate(ids, start=1)}


_every_tenant = Prepared(lambda: Tenant.objects.order_by("path").values_list("pk"))
# Reads only what the page shows of jobs.
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
        Node.objects.filter(cluster=cluster)
        .present()
        .select_related("generation")
        .order_by(*by_name("generation__name", "name"))
    )
)


def _cells(node: Node, holders: dict[int, Job], teams: dict[int, int]) -> list[Cell]:
    cells: list[Cell] = []
    for index in range(node.gpus):
        job = holders.get(index)
        if job is None:
            kind = UNHELD.get(node.state, AWAY)
        elif job.tenant_id in teams:
            kind = OWN
        else:
            kind, job = OTHER, None
        last = cells[-1] if cells else None
        if kind == OWN and job and last and last.job and last.job.pk == job.pk:
            cells[-1] = replace(last, span=last.span + 1)
        else:
            cells.append(Cell(kind, index, 1, job, teams[job.tenant_id] if job else 0))
    return cells
