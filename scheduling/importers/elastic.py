"""Converts elastic policies: with how many workers a job runs at least and at most."""

from __future__ import annotations

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.retries import put_whole


def put_bounds(policy: Fields, least: str, most: str, draft: JobDraft) -> None:
    """Sets the least and the most workers from the fields of `policy` with these names, as far as it has them."""
    for name, field, text in (
        (least, "workers", "The least number of workers."),
        (most, "max_workers", "The most workers."),
    ):
        if (number := policy.whole(name)) is not None:
            draft.put(field, number, policy.at(name), text)


def approximate(policy: Fields, draft: JobDraft) -> None:
    """Adds the line of the report for an elastic policy of a job whose workers differ."""
    draft.report.approximated(
        policy.path, "workers",
        "Only jobs whose workers are all equal are elastic. This one has roles, so it keeps the number of workers, the"
        " replicas.",
    )  # fmt: skip


def put_torch(policy: Fields, draft: JobDraft) -> None:
    """Sets the fields of a job from an elastic policy of Kubeflow's PyTorchJob."""
    report = draft.report
    put_bounds(policy, "minReplicas", "maxReplicas", draft)
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"):
        if name in policy:
            report.mapped(policy.at(name), "", "Fairlot sets the variables by which torchrun's workers meet.")
    if "nProcPerNode" in policy:
        report.mapped(policy.at("nProcPerNode"), "", "torchrun starts one process for each GPU.")
    put_whole(policy, "maxRestarts", draft)
    if "metrics" in policy:
        report.dropped(policy.at("metrics"), "Rounds choose the number of workers, from idle GPUs.")
