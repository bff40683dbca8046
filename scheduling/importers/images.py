"""Takes over the names of images, and what well-known images start by themselves."""

from __future__ import annotations

import re

from scheduling.importers.draft import JobDraft

# By the image's name without registry and tag: what its entrypoint runs, and the arguments it has if none are given.
# Only images whose documentation says so. "" means that the arguments themselves are the program.
ENTRYPOINTS: dict[str, tuple[str, str]] = {
    "vllm/vllm-openai": ("vllm serve", ""),
    "ollama/ollama": ("/bin/ollama", "serve"),
    "huggingface/text-generation-inference": ("text-generation-launcher", ""),
    "huggingface/text-embeddings-inference": ("text-embeddings-router", ""),
    "ggml-org/llama.cpp": ("/app/llama-server", ""),
    "tensorflow/tensorflow": ("", ""),
    "pytorch/pytorch": ("", ""),
    "nvidia/cuda": ("", ""),
    "nvidia/pytorch": ("", ""),
    "nvidia/tensorflow": ("", ""),
    "nvidia/tritonserver": ("", ""),
    "rapidsai/base": ("", ""),
    "rapidsai/notebooks": ("", ""),
    "lmsysorg/sglang": ("", ""),
    "rayproject/ray": ("", ""),
    "rayproject/ray-ml": ("", ""),
    "continuumio/miniconda3": ("", ""),
    "library/python": ("", ""),
    "library/ubuntu": ("", ""),
    "library/debian": ("", ""),
    "library/alpine": ("", ""),
    "library/busybox": ("", ""),
}


def put_image(draft: JobDraft, image: str, source: str) -> None:
    """Sets the image."""
    plain = re.sub(r"^docker:(?://)?", "", image.strip())
    draft.put("environment", plain, source)


def default_image(draft: JobDraft, text: str = "The text names no image.") -> None:
    """Reports that the user has to choose an environment, if there is no image yet."""
    if "environment" not in draft:
        draft.report.defaulted("environment", f"{text} Choose an environment that contains the software.")


def started_by(image: str) -> tuple[str, str] | None:
    """Returns the program that the image's entrypoint runs and its default arguments; None if this is not known."""
    name = image.split("@", maxsplit=1)[0]
    name = re.sub(r":[^/:]*$", "", name)
    name = re.sub(r"^[\w.-]+(?:\.[\w-]+)+(?::\d+)?/|^localhost(?::\d+)?/", "", name, flags=re.ASCII)
    return ENTRYPOINTS.get(name if "/" in name else f"library/{name}")
