"""Finds the GPU types of a cluster that a foreign name means, such as nvidia-a100-80gb or NVIDIA-A100-SXM4-80GB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MODEL = re.compile(
    r"(?<![a-z0-9])(gb200|gb300|gh200|b200|b300|h20|h100|h200|h800|a100x?|a800|a40|a30|a16|a10g?|a2|l40s?|l20|l4|l2|"
    r"v100s?|p100|p40|p4|t4g?|k80|m60|m40|"
    r"(?:rtx|gtx|quadro|geforce)*[ _-]*(?:rtx|gtx)?[ _-]*a?(?:1060|1070|1080|2060|2070|2080|3060|3070|3080|3090|4060|"
    r"4070|4080|4090|5070|5080|5090|2000|4000|4500|5000|5500|6000|8000)(?:[ _-]*ti)?(?:[ _-]*super)?(?:[ _-]*ada)?|"
    r"titan[ _-]*(?:xp|x|v|rtx)|mi(?:50|60|100|210|250x?|300[ax]?|308x|325x|350x|355x)|gaudi[ _-]*[23]?)(?![a-z]*\d)",
    re.IGNORECASE | re.ASCII,
)  # fmt: skip
MEMORY = re.compile(r"(?<![0-9a-z.])(\d{1,3})[ _-]?g(?:i?b)?(?![a-z0-9])", re.IGNORECASE | re.ASCII)
SLICE = re.compile(r"mig|\d+g\.\d+gb", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Choice:
    """The GPU types for a foreign name. If `exact` is false, `why` says in a sentence what is uncertain."""

    names: tuple[str, ...]
    exact: bool
    why: str = ""


def choose(name: str, known: Sequence[str]) -> Choice:
    """Returns the GPU types that `name` means. `known` has the names of the cluster's types; it may be empty.

    A name that no known type corresponds to is kept, so that the job is refused rather than run on other GPUs.
    """
    if not known:
        return Choice((_bare(name),), False, "Check that the cluster has GPUs of this name.")
    if same := [one for one in known if _plain(one) == _plain(name)]:
        return Choice(tuple(same), True)
    model, memory = model_of(name)
    near = [one for one in known if model and model_of(one)[0] == model]
    if fitting := [one for one in near if memory and model_of(one)[1] == memory]:
        return Choice(tuple(fitting), True)
    if near and (not memory or any(not model_of(one)[1] for one in near)):
        usable = [one for one in near if not memory or not model_of(one)[1]]
        why = (
            f"{name[:60]} says how much memory the GPU has; the name of the cluster's type does not."
            if memory
            else ""
        )
        return Choice(tuple(usable), not why, why)
    have = ", ".join(known[:12])
    return Choice((_bare(name),), False, f"The cluster has no such GPUs. It has {have}.")


def model_of(name: str) -> tuple[str, int]:
    """Returns the model in a name, such as "a100", and its memory in GB: 0 if the name does not say it. The model is ""
    if none is recognised."""
    found = MODEL.search(name.replace("_", "-"))
    memory = MEMORY.search(name)
    model = re.sub(r"[ _-]|quadro|geforce|(?:nvidia)", "", found[1].lower()) if found else ""
    return re.sub(r"^(?:rtx|gtx)(?=a?\d)", "", model, flags=re.ASCII), int(memory[1]) if memory else 0


VENDORS = {
    "amd": re.compile(r"mi\d+[ax]?", re.ASCII),
    "intel": re.compile(r"gaudi\d?|max1\d{3}|pvc|ponte.*|flex\d*|arc.*|b[56]0", re.ASCII),
}


def vendor_of(name: str) -> str:
    """Returns who makes the GPUs of a type: amd, intel or nvidia."""
    plain, model = _plain(name), model_of(name)[0]
    if "instinct" in name.lower() or name.lower().startswith("amd"):
        return "amd"
    return next((one for one, models in VENDORS.items() if models.fullmatch(model or plain)), "nvidia")


def is_slice(name: str) -> bool:
    """Returns whether the name means a part of a GPU, such as 1g.10gb (MIG)."""
    return bool(SLICE.search(name))


def _plain(name: str) -> str:
    return re.sub(
        r"[^a-z0-9]", "", re.sub(r"^(?:nvidia|amd|tesla)[ _-]*(?:tesla[ _-]*)?", "", name.strip().lower())
    )


def _bare(name: str) -> str:
    """Returns the model's usual name in capitals, with its memory, or the name itself if the model is unknown."""
    model, memory = model_of(name)
    return (model.upper() + (f"-{memory}GB" if memory else "")) if model else name.strip()[:60]
