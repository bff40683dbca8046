"""What a batch script requests: nodes, tasks, GPUs, CPUs and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from accounting.core.wording import counted
from scheduling.importers.amounts import NoAmount, size
from scheduling.importers.draft import JobDraft
from scheduling.importers.gpus import model_of
from scheduling.importers.report import Fate
from scheduling.importers.slurm.directives import BatchScript

WHOLE = re.compile(r"(\d{1,7})(k?)", re.ASCII)
# gpu, gpu:4, gpu:a100:4, gpu:a100:4(S:0-1)
GRES = re.compile(
    r"(?:gres[/:])?(?P<kind>[A-Za-z_]+)(?:[:=/](?P<type>[A-Za-z][\w.+-]*|\d+g\.\d+gb))?(?:[:=](?P<count>\d+)[kmgtKMGT]?)?(?:\(.*\))?",
    re.ASCII,
)
COUNT = re.compile(r"(?:(?P<type>[A-Za-z][\w.+-]*|\d+g\.\d+gb):)?(?P<count>\d{1,6})", re.ASCII)
LISTED = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+", re.ASCII)
RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
PARTS = {"mps", "shard", "gpu_shard"}
# By option, what its number counts GPUs for.
PER = {"gres": "node", "gpus-per-node": "node", "tres-per-node": "node", "gpus": "job", "gpus-per-task": "task",
       "tres-per-task": "task", "gpus-per-socket": "socket"}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Workers, one for each node, and the tasks that each of them starts."""

    workers: int = 1
    tasks_per_worker: int = 1
    gpus_per_worker: int = 1
    gpus_per_task: int = 0  # 0 if the tasks of a worker share its GPUs
    cpus_per_task: int = 0

    @classmethod
    def read(cls, script: BatchScript, draft: JobDraft) -> Self:
        """Reads the request and sets the fields of the specification."""
        reader = _Reader(script, draft)
        gpus = reader.gpus()
        workers, tasks = reader.nodes_and_tasks(gpus)
        per_worker = reader.gpus_of_a_worker(gpus, workers, tasks)
        request = cls(
            workers, tasks, per_worker,
            gpus[1] if gpus and PER[gpus[0]] == "task" else 0, reader.whole("cpus-per-task") or 0,
        )  # fmt: skip
        reader.processors(request)
        reader.memory(request)
        return request


class _Reader:
    def __init__(self, script: BatchScript, draft: JobDraft) -> None:
        self.script, self.draft, self.report = script, draft, draft.report

    def whole(self, name: str) -> int | None:
        """Returns the whole number of an option; None if the script does not have it, or if it is refused."""
        if name not in self.script:
            return None
        found = WHOLE.fullmatch(self.script.value(name).lower())
        if not found or not int(found[1]):
            self.report.refused_at(self.script.source(name), "Here a whole number from 1 is expected.")
            return None
        return int(found[1]) * (1000 if found[2] else 1)

    def gpus(self) -> tuple[str, int] | None:
        """Returns the option that requests GPUs, and its number; None if there is none. Sets the GPU types."""
        named: list[tuple[str, int]] = []
        for option, per in PER.items():
            if option not in self.script:
                continue
            source, found = self.script.source(option), self._counts(option)
            if not found:
                continue
            if len(found) > 1:
                self.report.refused_at(
                    source, "Several types of GPUs are requested at once. All GPUs of a job have one type.",
                    "generations",
                )  # fmt: skip
                continue
            kind, count = found[0]
            if kind:
                self.draft.generations([kind], source)
            named.append((option, count))
            self.report.mapped(source, "gpus_per_worker", f"{counted(count, 'GPU')} for each {per}.")
        return named[0] if named else None

    def _counts(self, option: str) -> list[tuple[str, int]]:
        """Returns the types and numbers of GPUs in an option. Other resources are dropped."""
        found: list[tuple[str, int]] = []
        source = self.script.source(option)
        for part in re.split(r",(?![^(]*\))", self.script.value(option)):
            said = (
                GRES.fullmatch(part.strip())
                if option.startswith(("gres", "tres"))
                else COUNT.fullmatch(part.strip())
            )
            if said is None:
                if part.strip().lower() not in {"", "none"}:
                    self.report.refused_at(
                        source, f"{part.strip()[:40]!r} is not understood as a number of GPUs."
                    )
                continue
            kind = said.groupdict().get("kind", "gpu").lower()
            if kind in PARTS:
                self.report.refused_at(source, "A part of a GPU is requested. Fairlot gives whole GPUs only.")
            elif kind != "gpu":
                self.report.dropped(source, f"Fairlot has no resource {kind[:40]}.")
            elif said["count"] != "0":
                found.append((said["type"] or "", int(said["count"] or 1)))
        return found

    def nodes_and_tasks(self, gpus: tuple[str, int] | None) -> tuple[int, int]:
        """Returns the number of workers and of tasks for each of them, and sets the workers."""
        tasks, per_node = self.whole("ntasks"), self.whole("ntasks-per-node")
        nodes = self._nodes()
        if nodes is None and tasks and per_node:
            nodes = -(-tasks // per_node)
            self.draft.put("workers", nodes, self.script.source("ntasks"),
                           f"{tasks} tasks, {per_node} on each node.")  # fmt: skip
        elif nodes is None and tasks:
            self.report.approximated(
                self.script.source("ntasks"), "workers",
                f"{tasks} tasks on one worker. Slurm may spread them over several nodes."
                if tasks > 1 else "One task is one worker.",
            )  # fmt: skip
        nodes = nodes or 1
        if "ntasks-per-node" in self.script and per_node:
            self.report.mapped(
                self.script.source("ntasks-per-node"),
                "command",
                f"srun starts {per_node} tasks in each worker.",
            )
        if "ntasks" in self.script and tasks:
            if not self.report.covers(self.script.source("ntasks")):
                self.report.mapped(
                    self.script.source("ntasks"), "command", f"srun starts {tasks} tasks in all."
                )
            if not per_node and tasks % nodes:
                self.report.refused_at(
                    self.script.source("ntasks"),
                    f"{tasks} tasks cannot be divided evenly among {nodes} nodes. Each worker has the same number.",
                )
        if "ntasks-per-gpu" in self.script and gpus and PER[gpus[0]] == "node":
            per_gpu = self.whole("ntasks-per-gpu") or 1
            self.report.mapped(self.script.source("ntasks-per-gpu"), "command", "srun starts these tasks.")
            return nodes, per_gpu * gpus[1]
        return nodes, per_node or max(1, (tasks or nodes) // nodes)

    def _nodes(self) -> int | None:
        if "nodes" not in self.script:
            return self._listed_nodes()
        source, value = self.script.source("nodes"), self.script.value("nodes")
        least, _, most = value.partition("-")
        found = WHOLE.fullmatch(least.strip().lower())
        if not found or not int(found[1]) or (most and not WHOLE.fullmatch(most.strip().lower())):
            self.report.refused_at(source, "Here a number of nodes is expected, such as 2 or 2-4.")
            return None
        nodes = int(found[1]) * (1000 if found[2] else 1)
        if most and most.strip() != least.strip():
            self.draft.put(
                "workers", nodes, source,
                "The least number of nodes. If the program can run with any number in between, set max_workers.",
                Fate.APPROXIMATED,
            )  # fmt: skip
        else:
            self.draft.put("workers", nodes, source, "One worker for each node.")
        return nodes

    def _listed_nodes(self) -> int | None:
        """Returns the number of nodes that --nodelist names, and sets the workers; None if it names one or none."""
        if "nodelist" not in self.script or (number := nodes_in(self.script.value("nodelist"))) < 2:
            return None
        self.draft.put(
            "workers", number, self.script.source("nodelist"),
            f"{number} nodes are listed, and each becomes a worker. Fairlot chooses the nodes.", Fate.APPROXIMATED,
        )  # fmt: skip
        return number

    def gpus_of_a_worker(self, gpus: tuple[str, int] | None, workers: int, tasks: int) -> int:
        """Returns the number of GPUs of each worker, and sets it."""
        if gpus is None:
            self.draft.default(
                "gpus_per_worker", 1, "The script requests no GPUs. Each worker of a job has at least one."
            )
            return 1
        option, number = gpus
        source, per = self.script.source(option), PER[option]
        if per == "socket":
            sockets = self.whole("sockets-per-node") or 1
            self.draft.put("gpus_per_worker", number * sockets, source,
                           f"With {sockets} sockets on each node.", Fate.APPROXIMATED)  # fmt: skip
            return number * sockets
        if per == "job" and number % workers:
            self.report.refused_at(
                source, f"{number} GPUs cannot be divided evenly among {workers} nodes.", "gpus_per_worker"
            )
            return 1
        each = number // workers if per == "job" else number * tasks if per == "task" else number
        if per == "job" and "nodes" not in self.script and number > 1:
            self.draft.put("gpus_per_worker", each, source, "All GPUs in one worker. Slurm may spread them over nodes.",
                           Fate.APPROXIMATED)  # fmt: skip
        else:
            self.draft.put("gpus_per_worker", each, source, f"Each worker has {each} GPUs.")
        return each

    def processors(self, request: Request) -> None:
        """Sets the CPUs of each worker."""
        if request.cpus_per_task:
            number = request.cpus_per_task * request.tasks_per_worker
            self.draft.put("cpu", number, self.script.source("cpus-per-task"),
                           f"{request.cpus_per_task} CPUs for each of {request.tasks_per_worker} tasks."
                           if request.tasks_per_worker > 1 else "")  # fmt: skip
        elif per_gpu := self.whole("cpus-per-gpu"):
            self.draft.put("cpu", per_gpu * request.gpus_per_worker, self.script.source("cpus-per-gpu"),
                           f"{per_gpu} CPUs for each of {request.gpus_per_worker} GPUs.")  # fmt: skip
        elif least := self.whole("mincpus"):
            self.draft.put("cpu", least, self.script.source("mincpus"), "The least number of CPUs.",
                           Fate.APPROXIMATED)  # fmt: skip

    def memory(self, request: Request) -> None:
        """Sets the memory of each worker. A number without a unit means MB, which in Slurm are MiB."""
        cpus = int(self.draft.spec.get("cpu", request.tasks_per_worker))
        for option, times in (("mem", 1), ("mem-per-gpu", request.gpus_per_worker), ("mem-per-cpu", cpus)):
            if option not in self.script:
                continue
            source = self.script.source(option)
            try:
                number = size(self.script.value(option), bare="M", binary=True) * times
            except NoAmount as error:
                self.report.refused_at(source, str(error), "memory")
                continue
            if number == 0:
                self.report.approximated(
                    source, "",
                    "0 asks for all memory of the node. Without a value, each worker gets the part of the memory that"
                    " corresponds to its GPUs.",
                )  # fmt: skip
            elif "memory" in self.draft:
                self.report.dropped(source, "Another option already sets the memory.")
            else:
                self.draft.amount("memory", number, source, f"{times} times." if times > 1 else "")


def nodes_in(nodes: str) -> int:
    """Returns the number of nodes in a list such as gpu[1-3,7],login; 0 if it is not known."""
    number = 0
    for part in LISTED.findall(nodes):
        each = 1
        for ranges in re.findall(r"\[([^\[\]]*)\]", part):
            pieces = [RANGE.fullmatch(piece.strip()) for piece in ranges.split(",")]
            each *= sum(int(piece[2] or piece[1]) - int(piece[1]) + 1 if piece else 0 for piece in pieces)
        number += each
    return 0 if "/" in nodes or "$" in nodes else number


def models_in(constraint: str) -> list[str]:
    """Returns the features of a constraint that name a GPU model, such as a100 or gpu_v100_32gb."""
    words = [word for word in re.split(r"[|&\[\]()*,\s\"']+", constraint, flags=re.ASCII) if word]
    return [word for word in words if model_of(word)[0]]
