"""Takes over numbers of GPUs and CPUs, and machines of clouds."""

from __future__ import annotations

from decimal import Decimal

from scheduling.importers import gpu_models
from scheduling.importers.amounts import NoAmount, size
from scheduling.importers.documents import shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate

MOST_GPUS = 64
AT_LEAST_ONE = "Each worker of a job has at least one."


def no_gpus(draft: JobDraft) -> None:
    """Gives each worker one GPU, because the text requests none."""
    draft.default("gpus_per_worker", 1, f"The text requests no GPUs. {AT_LEAST_ONE}")


def put_gpus(draft: JobDraft, number: int, source: str, text: str = "") -> None:
    """Sets the GPUs of a worker. 0 becomes 1."""
    if number == 0:
        draft.put(
            "gpus_per_worker", 1, source, f"The text requests no GPUs. {AT_LEAST_ONE}", Fate.APPROXIMATED
        )
    elif 0 < number <= MOST_GPUS:
        draft.put("gpus_per_worker", number, source, text)
    else:
        draft.report.refused_at(source, f"A worker has 1 to {MOST_GPUS} GPUs.", "gpus_per_worker")


def put_memory(
    draft: JobDraft, field: str, said: str, source: str, *, bare: str = "", text: str = ""
) -> None:
    """Sets memory or shared memory. K, M and G are powers of 1024; `bare` is the unit of a number without one."""
    try:
        number = size(said, bare=bare, binary=True)
    except NoAmount:
        draft.report.refused_at(
            source, "This is not an amount of memory with a unit, such as 64GB or 64GiB.", field
        )
        return
    draft.amount(field, number, source, text)


def put_cpus(draft: JobDraft, number: Decimal, source: str, text: str = "") -> None:
    """Sets the CPUs of a worker. A worker has at least a tenth of one."""
    if not number.is_finite() or not 0 < number <= 1024:
        draft.report.refused_at(source, "A worker has 0.1 to 1024 CPUs.", "cpu")
    elif number < Decimal("0.1"):
        draft.put("cpu", 0.1, source, "A worker has at least 0.1 CPUs.", Fate.APPROXIMATED)
    else:
        draft.put("cpu", float(number), source, text)


def put_machine(fields: Fields, name: str, draft: JobDraft) -> bool:
    """Sets the GPUs of a machine type of a cloud. Returns whether the machine has GPUs."""
    said = fields.text(name)
    if found := gpu_models.machine(said):
        draft.spec["gpus_per_worker"] = found.gpus
        draft.generations([found.model], fields.at(name))
        draft.report.approximated(
            fields.at(name),
            "gpus_per_worker",
            f"A machine {shown(said)} has {found.gpus} GPUs of the type {found.model}.",
        )
        return True
    draft.spec.setdefault("gpus_per_worker", 1)
    draft.report.approximated(
        fields.at(name), "gpus_per_worker",
        f"It is not known whether a machine {shown(said)} has GPUs. Each worker has one; choose the number and"
        f" the type.",
    )  # fmt: skip
    return False
