"""Lays out the graph of a pipeline: a column for each rank, a box for each step, and a line for each need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from accounting.core.wording import counted, duration
from scheduling.models import PipelineStep, StepNeed
from scheduling.pipelines.definition import Step

WIDTH, HEIGHT = 176, 56  # of a box, in pixels
ACROSS, DOWN = 72, 20  # space between columns and between boxes of a column
EDGE = 8  # space around the graph, so that focus rings and lines are not cut off
LONGEST = 20  # characters of a name that fit into a box
ROUNDS = 4  # passes that put boxes near those that they need


@dataclass(frozen=True, slots=True)
class Box:
    """A step, or a job outside the pipeline that a step needs. `x` and `y` are the left upper corner."""

    label: str  # as it is drawn, perhaps shortened
    name: str
    state: str
    text: str  # of the state
    link: str  # fragment or address that the box leads to; "" if it is no link
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    when: str  # a value of StepNeed.When
    is_met: bool


@dataclass(frozen=True, slots=True)
class Graph:
    boxes: Sequence[Box]
    lines: Sequence[Line]
    width: int
    height: int


def ranks_of(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns the column of each name: 0 for what needs nothing, otherwise one more than that of what it needs.

    `needs` maps each name to the names that it needs, and has no circle.
    """
    ranks: dict[str, int] = {}
    left = dict(needs)
    while left:
        free = [name for name, wanted in left.items() if all(one in ranks for one in wanted)]
        for name in free:
            ranks[name] = max((ranks[one] + 1 for one in left.pop(name)), default=0)
        if not free:
            raise ValueError("the steps need each other in a circle")
    return ranks


def columns_of(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns the names by column. In a column, names stand near the middle of what they need and are needed by."""
    ranks = ranks_of(needs)
    columns: list[list[str]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in needs:
        columns[ranks[name]].append(name)
    near: dict[str, list[str]] = {name: list(wanted) for name, wanted in needs.items()}
    for name, wanted in needs.items():
        for one in wanted:
            near[one].append(name)
    for _ in range(ROUNDS):
        places = {name: place - len(column) / 2 for column in columns for place, name in enumerate(column)}

        def middle(name: str, places: Mapping[str, float] = places) -> float:
            others = near[name]
            return sum(places[one] for one in others) / len(others) if others else places[name]

        for column in columns:
            column.sort(key=middle)
    return columns


@dataclass(frozen=True, slots=True)
class Node:
    """A step, or a job outside the pipeline that a step needs.

    `needs` are pairs: the name of what it needs, and a value of StepNeed.When. The other fields are those of its box.
    """

    name: str
    state: str
    text: str
    link: str = ""
    needs: Sequence[tuple[str, str]] = ()


def draw(
    steps: Sequence[PipelineStep], links: Mapping[int, str], held: Mapping[int, float | None] | None = None
) -> Graph:
    """Returns the graph of a pipeline's steps, with their `needs`, and the jobs that they need.

    - `links` maps ids of jobs outside the pipeline to the addresses of their pages.
    - `held` maps ids of steps to how many seconds their jobs have held GPUs.
    """
    names = {step.pk: step.name for step in steps}
    outside = {need.label: need for step in steps for need in step.needs.all() if need.on_id is None}
    nodes = [_job(need, links) for need in outside.values()]
    for step in steps:
        needs = [(names[need.on_id] if need.on_id else need.label, need.when) for need in step.needs.all()]
        text = step.get_state_display()
        if step.state == PipelineStep.State.ACTIVE and step.job:
            text = step.job.get_state_display()
        if lasted := (held or {}).get(step.pk):
            text = f"{text} · {duration(lasted)}"
        nodes.append(Node(step.name, step.state, text, f"#step-{step.name}", needs))
    return lay_out(nodes)


def draw_written(steps: Sequence[Step], wrong: Collection[str] = ()) -> Graph:
    """Returns the graph of steps that are not submitted yet, and the jobs that they need. `wrong` are names of steps
    with problems."""
    outside = dict.fromkeys(need.label for step in steps for need in step.needs if need.job is not None)
    nodes = [Node(label, "pending", "") for label in outside]
    for step in steps:
        state, text = ("failed", "to be corrected") if step.name in wrong else ("pending", _gpus(step))
        nodes.append(Node(step.name, state, text, "", [(need.label, need.when) for need in step.needs]))
    return lay_out(nodes)


def lay_out(nodes: Sequence[Node]) -> Graph:
    """Returns the graph of nodes that do not need each other in a circle."""
    by_name = {node.name: node for node in nodes}
    columns = columns_of({node.name: [name for name, _ in node.needs] for node in nodes})
    tallest = max((len(column) for column in columns), default=0)
    height = EDGE * 2 + tallest * (HEIGHT + DOWN) - DOWN
    places: dict[str, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        top = (height - len(column) * (HEIGHT + DOWN) + DOWN) // 2
        for place, name in enumerate(column):
            places[name] = (EDGE + number * (WIDTH + ACROSS), top + place * (HEIGHT + DOWN))
    boxes = [
        Box(_short(name), name, by_name[name].state, by_name[name].text, by_name[name].link, *places[name])
        for column in columns
        for name in column
    ]
    lines = [
        _line(places[wanted], places[node.name], when, by_name[wanted].state)
        for node in nodes
        for wanted, when in node.needs
    ]
    return Graph(boxes, lines, EDGE * 2 + len(columns) * (WIDTH + ACROSS) - ACROSS, height)


def _job(need: StepNeed, links: Mapping[int, str]) -> Node:
    job = need.job
    state = job.state if job and job.has_ended else "active"
    link = links.get(job.pk, "") if job else ""
    return Node(need.label, state, job.get_state_display() if job else "", link)


def _gpus(step: Step) -> str:
    spec = step.spec
    gpus = counted(spec.gpus_per_worker, "GPU")
    return gpus if spec.workers == 1 else f"{spec.workers} × {gpus}"


def _line(begin: tuple[int, int], end: tuple[int, int], when: str, state: str) -> Line:
    x, y = begin[0] + WIDTH, begin[1] + HEIGHT // 2
    to_x, to_y = end[0] - 6, end[1] + HEIGHT // 2  # the arrow head ends at the box
    bend = ACROSS // 2
    wanted = {"success": {"succeeded"}, "failure": {"failed"}}.get(
        when, {"succeeded", "failed", "cancelled", "skipped"}
    )
    return Line(f"M{x},{y}C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}", when, state in wanted)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
