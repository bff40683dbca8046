"""How often the programs of Kubernetes objects are started again after they failed."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.retries import (
    AGAIN,
    FAILS,
    OTHER_FIELD,
    exit_codes_in,
    put_times,
    put_usual,
)

# Objects that run until they are removed.
ENDLESS = {"Deployment", "RayCluster"}
# Objects whose pods start again only if their restartPolicy says so, whatever the number is.
NEED_POLICY = {"PyTorchJob", "TFJob", "MPIJob"}
# The numbers of retries. Of those at the same depth, the first one counts.
COUNTS = ("maxRestarts", "backoffLimitPerIndex", "backoffLimit", "maxRetry")
POLICY = "restartPolicy"
# Parts of objects whose fields of these names are about something else.
ELSEWHERE = {
    "containers", "initContainers", "volumes", "metadata", "elasticPolicy", "rayClusterSpec", "submitterPodTemplate",
    "podFailurePolicy",
}  # fmt: skip
# Exit codes of programs that a signal ended, after which Kubeflow's policy ExitCode starts a pod again.
OF_SIGNALS = tuple(range(129, 160))
VOLCANO_TIMES = 3  # what a Job of Volcano has by default
RESTARTS = {"RestartJob", "RestartTask", "RestartPod"}


def put(kind: str, root: Fields, draft: JobDraft) -> None:
    """Sets the retries from the fields of an object of this kind, wherever it has them."""
    if kind in ENDLESS:
        return
    report, spec = draft.report, root.section("spec")
    found = sorted(_named(spec, 0), key=lambda one: one[0])
    policies = [(fields, fields.text(POLICY)) for _, fields, name in found if name == POLICY]
    counts = _counts([(depth, fields, name) for depth, fields, name in found if name != POLICY])
    limits = [_failures(fields, draft) for fields in _policies_of_failures(spec)]
    codes = [code for limit in limits for code in limit or ()]
    if any(policy == "ExitCode" for _, policy in policies):
        codes += OF_SIGNALS
    never = kind in NEED_POLICY and bool(policies) and all(policy == "Never" for _, policy in policies)
    hopeless = any(limit == [] for limit in limits)
    for fields, name, times in counts:
        if never:
            report.mapped(fields.at(name), "retries", f"The restartPolicy is Never. {FAILS}")
        elif hopeless:
            report.mapped(fields.at(name), "retries", f"The podFailurePolicy allows no retry. {FAILS}")
        else:
            put_times(draft, times, fields.at(name), exit_codes=codes)
    for fields, policy in policies:
        _put_policy(kind, policy, fields.at(POLICY), draft, codes=codes, counted=bool(counts) or hopeless)
    if kind.startswith("Volcano"):
        job = spec.section("jobTemplate", "spec") if kind == "Volcano CronJob" else spec
        for part in (job, *job.sections("tasks")):
            _put_of_volcano(part, draft, counted=bool(counts))


def _put_policy(
    kind: str, policy: str, source: str, draft: JobDraft, *, codes: list[int], counted: bool
) -> None:
    report = draft.report
    if policy == "ExitCode":
        report.approximated(
            source, "retries.exit_codes",
            f"Programs that a signal ended start again: their exit codes are {OF_SIGNALS[0]} to {OF_SIGNALS[-1]}.",
        )  # fmt: skip
        if not counted and "retries" not in draft:
            put_usual(draft, source, exit_codes=codes)
    elif policy not in {"OnFailure", "Always"}:
        if kind in {"Job", "CronJob"} and not counted:
            report.approximated(
                source, "retries", f"Without a backoffLimit, Kubernetes would replace a failed pod 6 times. {FAILS}"
            )  # fmt: skip
        else:
            report.mapped(source, "retries", OTHER_FIELD if counted else FAILS)
    elif counted:
        report.mapped(source, "retries", OTHER_FIELD)
    else:
        put_usual(draft, source, exit_codes=codes)


def _put_of_volcano(part: Fields, draft: JobDraft, *, counted: bool) -> None:
    """Sets the retries from the policies of a Job of Volcano or of its task."""
    for policy in part.sections("policies"):
        events = {policy.text("event"), *policy.texts("events")}
        if policy.text("action") in RESTARTS and events & {"PodFailed", "*"}:
            if counted:
                draft.report.mapped(policy.path, "retries", OTHER_FIELD)
            else:
                put_times(draft, VOLCANO_TIMES, policy.path, text="This is the default of Volcano.")
        elif policy.text("action") in RESTARTS:
            draft.report.mapped(policy.path, "", AGAIN)


def _counts(found: list[tuple[int, Fields, str]]) -> list[tuple[Fields, str, int]]:
    """Returns the numbers of retries: the one that counts first, which is the outermost one that is not 0."""
    read = [(fields, name, fields.whole(name)) for _, fields, name in found]
    counts = [(fields, name, times) for fields, name, times in read if times is not None]
    return sorted(counts, key=lambda one: one[2] == 0)


def _named(fields: Fields, depth: int) -> Iterator[tuple[int, Fields, str]]:
    """Yields the depth of each field that says how often pods start again, the mapping that has it, and its name."""
    for name in (*COUNTS, POLICY):
        if name in fields:
            yield depth, fields, name
    for inner in _inside(fields):
        yield from _named(inner, depth + 1)


def _policies_of_failures(fields: Fields) -> Iterator[Fields]:
    if isinstance(fields.get("podFailurePolicy"), dict):
        yield fields.section("podFailurePolicy")
    for inner in _inside(fields):
        yield from _policies_of_failures(inner)


def _inside(fields: Fields) -> Iterator[Fields]:
    """Yields the mappings in a mapping, also those in its lists, except those of ELSEWHERE."""
    for name in fields:
        value = fields.get(name)
        if name in ELSEWHERE:
            continue
        if isinstance(value, dict):
            yield fields.section(name)
        elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
            yield from fields.sections(name)


def _failures(policy: Fields, draft: JobDraft) -> list[int] | None:
    """Returns the exit codes after which the program is started again; None for all. Reports each rule."""
    report, only, never = draft.report, None, set[int]()
    for rule in policy.sections("rules"):
        action, on = rule.text("action"), rule.section("onExitCodes")
        values = on.items("values")
        codes = exit_codes_in([value for value in values if value != 0])
        if action in {"FailJob", "FailIndex"} and on.text("operator") == "NotIn" and (codes or values == [0]):
            only = set(codes) if only is None else only & set(codes)
            report.mapped(rule.path, "retries.exit_codes", "Only these failures are followed by a retry.")
        elif "onExitCodes" not in rule:
            report.mapped(rule.path, "", f"{AGAIN} This does not count as a retry.")
        elif action == "Count":
            report.mapped(rule.path, "retries", "All failures count.")
        else:
            never |= set(codes) if action in {"FailJob", "FailIndex"} else set()
            report.approximated(
                rule.path, "retries.exit_codes",
                "Fairlot has a list of the exit codes after which it tries again, and none of those after which it does"
                " not. Failures with these count like all others.",
            )  # fmt: skip
    return None if only is None else sorted(only - never)
