"""The GPU map: which job holds which GPU now. The names of jobs that the user may not see are hidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from accounting.core.name_order import by_name
from accounting.core.prepared import Prepared
from accounting.models import Generation, Tenant, User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from portal.cluster.choice import Choice
from scheduling.models import Cluster, HeldGpu, Job, Node

FREE, OWN, OTHER, DRAINED, AWAY = "free", "own", "other", "drained", "away"
# the kind of a GPU that no job holds, by the state of its node
UNHELD: dict[str, str] = {Node.State.READY: FREE, Node.State.DRAINED: DRAINED}
COLOURS = 6  # CSS variables --series-1 to --series-6


@dataclass(frozen=True)
class Cell:
    """A cell of the GPU map: the adjacent GPUs of one node that one job holds, or a single GPU that no visible job
    holds."""

    kind: str
    first: int
    span: int = 1
    job: Job | None = None  # None unless the user may see the job's team
    team: int = 0  # number of the job's team among the teams that the user may see; 0 without a job

    @property
    def gpus(self) -> str:
        return f"GPU {self.first}" if self.span == 1 else f"GPUs {self.first}–{self.first + self.span - 1}"

    @property
    def series(self) -> int:
        """Returns the colour of the cell's team, as a number from 1 to COLOURS; 0 for a cell without a team."""
        return (self.team - 1) % COLOURS + 1 if self.team else 0


@dataclass(frozen=True)
class Legend:
    """The legend of the GPU map.

    `teams` has a pair (team name, cell) for each team on the map. The cell is an example that shows the team's colour.
    `kinds` has the kinds of all cells on the map, such as free or drained.
    """

    teams: list[tuple[str, Cell]]
    kinds: set[str]


@dataclass(frozen=True)
class NodeRow:
    node: Node
    cells: list[Cell]

    @property
    def held(self) -> int:
        """Returns the number of the node's GPUs that jobs hold now."""
        return sum(cell.span for cell in self.cells if cell.kind in {OWN, OTHER})


@dataclass
class GenerationRow:
    """The nodes of one generation. `counts` has the number of their GPUs for each kind of cell, such as free or
    drained."""

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
    """Returns all nodes of `cluster`, grouped by generation. The number of queries does not depend on the cluster's
    size."""
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


def narrowed(rows: Iterable[GenerationRow], choice: Choice) -> list[GenerationRow]:
    """Returns the rows with only the chosen GPU type, the nodes whose names contain the chosen text, and the nodes with
    GPUs that jobs of the chosen team hold."""
    if not choice.is_narrow:
        return list(rows)
    found = []
    for row in rows:
        if choice.generation not in {"", row.generation.name}:
            continue
        nodes = [entry for entry in row.nodes if _fits(entry, choice)]
        if nodes:
            kept = GenerationRow(row.generation, nodes)
            for cell in (cell for entry in nodes for cell in entry.cells):
                kept.counts[cell.kind] += cell.span
            found.append(kept)
    return found


def _fits(entry: NodeRow, choice: Choice) -> bool:
    if choice.node.lower() not in entry.node.name.lower():
        return False
    teams = choice.tenants
    return teams is None or any(cell.job and cell.job.tenant_id in teams for cell in entry.cells)


def legend_of(gpu_maps: Iterable[list[GenerationRow]]) -> Legend:
    cells = [cell for rows in gpu_maps for row in rows for entry in row.nodes for cell in entry.cells]
    teams = {cell.team: (cell.job.tenant.name, cell) for cell in cells if cell.job}
    return Legend([teams[number] for number in sorted(teams)], {cell.kind for cell in cells})


def _teams(user: User) -> dict[int, int]:
    """Numbers the tenants that `user` may see, starting at 1. Returns the numbers by tenant id. A tenant's number
    determines its colour.

    The numbers do not change when jobs start or end.
    """
    ids = [pk for (pk,) in _every_tenant()] if sees_every_tenant(user) else ids_with_role(user)
    return {pk: number for number, pk in enumerate(ids, start=1)}


_every_tenant = Prepared(lambda: Tenant.objects.order_by("path").values_list("pk"))
# Reads only those columns of a job that the page shows.
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
