"""Finds the GPUs that a service of a Compose file requests."""

from __future__ import annotations

from typing import Any

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.interpolation import filled
from scheduling.importers.reading import step
from scheduling.importers.report import Fate
from scheduling.importers.resources import no_gpus, put_gpus

ALL = "All GPUs of the machine are requested. The worker gets one; choose the number."
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def has_gpus(fields: Fields) -> bool:
    """Returns whether a service requests GPUs in any way."""
    devices = fields.section("deploy", "resources", "reservations").get("devices")
    if any(_is_gpu(one) for one in (devices if isinstance(devices, list) else ())):
        return True
    if "gpus" in fields or fields.text("runtime") == "nvidia" or _generic(fields):
        return True
    return any(_is_nvidia(one) for one in _device_files(fields)) or _visible(fields) not in {
        "",
        "none",
        "void",
    }


def put_requested(fields: Fields, draft: JobDraft) -> None:
    """Sets the number of GPUs, and reports each field that requests them."""
    reservations = fields.section("deploy", "resources", "reservations")
    for at, one in enumerate(reservations.items("devices")):
        path = step(reservations.at("devices"), at)
        if not _is_gpu(one):
            draft.report.refused_at(path, "Fairlot gives no devices other than GPUs.")
        else:
            _request(Fields(one, path, fields.document, fields.report), draft)
    value = fields.get("gpus")
    if isinstance(value, list):
        for one in fields.sections("gpus"):
            _request(one, draft)
    elif value is not None:
        _count(value, fields.at("gpus"), draft)
    for path, number in _generic(fields):
        _count(number, path, draft)
    _devices(fields, draft)
    if "gpus_per_worker" not in draft:
        _without_number(fields, draft)


def _devices(fields: Fields, draft: JobDraft) -> None:
    for at, one in enumerate(fields.items("devices")):
        path = step(fields.at("devices"), at)
        if _is_nvidia(one):
            draft.report.mapped(path, "gpus_per_worker", "A worker sees its GPUs.")
            if one.startswith(("/dev/kfd", "amd.com/")):
                draft.vendor("amd", path)
        else:
            draft.report.refused_at(path, "Fairlot gives no devices of the node other than GPUs.")
    if fields.text("runtime") == "nvidia":
        draft.report.mapped(fields.at("runtime"), "gpus_per_worker", "A worker sees its GPUs.")


def _without_number(fields: Fields, draft: JobDraft) -> None:
    visible = filled(_visible(fields))[0]
    if visible and visible not in {"all", "none", "void"}:
        draft.spec["gpus_per_worker"] = min(len(visible.split(",")), 64)
        draft.report.remark(
            Fate.APPROXIMATED, fields.at("environment"), "gpus_per_worker",
            f"{VISIBLE} names {len(visible.split(','))} GPUs. The worker gets this number, whichever are free.",
        )  # fmt: skip
    elif has_gpus(fields):
        draft.default("gpus_per_worker", 1, ALL)
    else:
        no_gpus(draft)


def _request(one: Fields, draft: JobDraft) -> None:
    ids = one.texts("device_ids")
    if ids:
        _count(
            len(ids), one.at("device_ids"), draft, "The worker gets this number of GPUs, whichever are free."
        )
    elif "count" in one:
        _count(one.get("count"), one.at("count"), draft)
    else:
        _count("all", one.path, draft)
    draft.report.mapped(one.path, "gpus_per_worker", "This requests GPUs.")
    if one.text("driver") == "amd":
        draft.vendor("amd", one.at("driver"))


def _count(said: Any, path: str, draft: JobDraft, text: str = "") -> None:
    value = filled(str(said))[0]
    if "gpus_per_worker" in draft:
        draft.report.dropped(path, "Another field already sets the number of GPUs.")
    elif value.lower() in {"all", "-1"}:
        draft.put("gpus_per_worker", 1, path, ALL, Fate.APPROXIMATED)
    elif value.isascii() and value.isdigit() and len(value) < 6:
        put_gpus(draft, int(value), path, text)
    else:
        draft.report.refused_at(path, "This is not a number of GPUs. Write the number.", "gpus_per_worker")


def _is_gpu(one: Any) -> bool:
    if not isinstance(one, dict):
        return False
    said = one.get("capabilities")
    words: list[Any] = []
    for word in said if isinstance(said, list) else []:
        words += word if isinstance(word, list) else [word]
    return "gpu" in words or one.get("driver") in ("nvidia", "cdi", "amd")


def _is_nvidia(one: Any) -> bool:
    return isinstance(one, str) and one.startswith(
        ("/dev/nvidia", "nvidia.com/gpu", "/dev/dri", "/dev/kfd", "amd.com/gpu")
    )


def _device_files(fields: Fields) -> list[Any]:
    value = fields.get("devices")
    return value if isinstance(value, list) else []


def _visible(fields: Fields) -> str:
    value = fields.get("environment")
    if isinstance(value, dict):
        return str(value.get(VISIBLE) if value.get(VISIBLE) is not None else "").strip()
    named = (
        [str(one) for one in value if str(one).startswith(f"{VISIBLE}=")] if isinstance(value, list) else []
    )
    return named[0].partition("=")[2].strip() if named else ""


def _generic(fields: Fields) -> list[tuple[str, Any]]:
    """Returns (path, number) for each generic resource of Swarm that means GPUs."""
    section = fields.section("deploy", "resources", "reservations")
    value = section.get("generic_resources")
    found = []
    for at, one in enumerate(value if isinstance(value, list) else []):
        inner = one.get("discrete_resource_spec") if isinstance(one, dict) else None
        if isinstance(inner, dict) and "gpu" in str(inner.get("kind")).lower():
            found.append((step(section.at("generic_resources"), at), inner.get("value")))
    return found
