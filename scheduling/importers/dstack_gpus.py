"""Reads what a dstack configuration says about GPUs: names, memory and counts, each of which may be a range."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from scheduling.importers import gpu_models
from scheduling.importers.documents import drop_each, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate
from scheduling.importers.resources import put_gpus

VENDORS = {"nvidia", "amd", "intel", "google", "tpu", "tenstorrent"}
COUNT = re.compile(r"(\d{0,4})(\.\.)?(\d{0,4})", re.ASCII)
SIZE = re.compile(
    r"(\d{1,5})?\s*(?:GB|GiB|G)?(\.\.)?(?:(\d{1,5})\s*(?:GB|GiB|G)?)?", re.IGNORECASE | re.ASCII
)


@dataclass
class Wanted:
    """The GPUs that a text asks for. Memory is in GB; `most_memory` is 0 if there is no limit."""

    names: list[str] = field(default_factory=list)
    vendor: str = ""
    memory: str = ""
    count: str = ""


def read_text(text: str) -> Wanted:
    """Reads a text such as A100:80GB:2, 24GB..80GB:1..8, nvidia:2 or A100,H100."""
    wanted = Wanted()
    for part in (one.strip() for one in text.split(":")):
        if part.lower() in VENDORS:
            wanted.vendor = part.lower()
        elif re.fullmatch(r"\d*(\.\.)?\d*", part, re.ASCII) and part not in {"", ".."}:
            wanted.count = part
        elif re.search(r"\d\s*g", part, re.IGNORECASE | re.ASCII) and SIZE.fullmatch(part):
            wanted.memory = part
        elif part:
            wanted.names += [one.strip() for one in part.split(",") if one.strip()]
    return wanted


def put_wanted(fields: Fields, name: str, draft: JobDraft) -> None:
    """Sets the number and the types of GPUs from the field `name`."""
    value, path = fields.get(name), fields.at(name)
    if isinstance(value, dict):
        section = fields.section(name)
        names = section.texts("name") or section.texts("names")
        wanted = Wanted(
            [one.strip() for text in names for one in text.split(",") if one.strip()], section.text("vendor").lower(),
            _range(section, "memory"), _range(section, "count"),
        )  # fmt: skip
        drop_each(section, {
            "total_memory": "Fairlot chooses GPUs by type and number.",
            "compute_capability": "Fairlot chooses GPUs by type. Name the types that the program supports.",
        })  # fmt: skip
    else:
        wanted = read_text(fields.text(name))
    _names(wanted, path, draft)
    _count(wanted, path, draft)
    _memory(wanted, path, draft)


def _range(section: Fields, name: str) -> str:
    if isinstance(section.get(name), dict):
        inner = section.section(name)
        return f"{inner.text('min')}..{inner.text('max')}"
    return section.text(name)


def _names(wanted: Wanted, path: str, draft: JobDraft) -> None:
    if wanted.vendor in {"google", "tpu", "tenstorrent"}:
        draft.report.refused_at(
            path, "These accelerators are no GPUs. Fairlot gives only GPUs.", "generations"
        )
        return
    usable = [one for one in wanted.names if not gpu_models.is_no_gpu(one)]
    if wanted.names and not usable:
        draft.report.refused_at(
            path, f"{shown(wanted.names[0])} is no GPU. Fairlot gives only GPUs.", "generations"
        )
        return
    exact = wanted.memory if wanted.memory and ".." not in wanted.memory else ""
    draft.generations(
        [
            f"{one}-{exact}" if exact and not re.search(r"\dGB", one, flags=re.ASCII) else one
            for one in usable
        ],
        path,
    )
    if wanted.vendor in {"amd", "intel"}:
        draft.vendor(wanted.vendor, path)
    elif wanted.vendor and not usable:
        draft.report.approximated(
            path, "generations", f"Choose the GPU types, because not all may be of {shown(wanted.vendor)}."
        )


def _count(wanted: Wanted, path: str, draft: JobDraft) -> None:
    found = COUNT.fullmatch(wanted.count)
    if not found:
        draft.report.refused_at(
            path, "The number of GPUs is neither a number nor a range.", "gpus_per_worker"
        )
        return
    least, is_range, most = found[1], found[2], found[3]
    number = int(least or (1 if is_range or not wanted.count else 0))
    put_gpus(draft, number, path, "One GPU, because no number is given." if not wanted.count else "")
    if is_range and most != least:
        draft.report.remark(
            Fate.APPROXIMATED, path, "gpus_per_worker",
            f"The text accepts more GPUs. A worker has a fixed number, which is {number}.",
        )  # fmt: skip


def _memory(wanted: Wanted, path: str, draft: JobDraft) -> None:
    if not wanted.memory or draft.spec.get("generations"):
        if wanted.memory and ".." in wanted.memory:
            draft.report.remark(
                Fate.DROPPED, path, "generations", "The type counts, not the memory of the GPU."
            )
        return
    found = SIZE.fullmatch(wanted.memory.strip())
    if not found or not (found[1] or found[3]):
        draft.report.remark(
            Fate.DROPPED, path, "generations", "The memory of the GPU is no amount such as 24GB..80GB."
        )
        return
    least = float(found[1] or 0)
    most = float(found[3] or 10_000) if found[2] else least
    if fitting := gpu_models.with_memory(least, most, draft.known):
        draft.put(
            "generations", fitting, path, "These types of the cluster have as much memory as is asked for.",
            Fate.APPROXIMATED,
        )  # fmt: skip
    else:
        draft.report.approximated(
            path, "generations",
            "Fairlot chooses GPUs by type, not by memory. Choose the types that have enough; otherwise all are"
            " accepted.",
        )  # fmt: skip


def as_text(value: Any) -> str:
    """Returns the least of a range such as 8.. or {min: 8}, or the value itself, as a text."""
    if isinstance(value, dict):
        value = value.get("min")
    return str(value if value is not None else "").partition("..")[0].strip()
