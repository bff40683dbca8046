"""Refuses what a job of Fairlot may not do, and sets its user and group."""

from __future__ import annotations

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.spec.pod_fields import why_not

NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
# Capabilities that only make a program faster or help to find faults in it.
HARMLESS = {"IPC_LOCK", "SYS_PTRACE", "SYS_RESOURCE", "SYS_NICE", "NET_RAW", "NET_BIND_SERVICE"}


def check(spec: Fields, container: Fields, draft: JobDraft) -> None:
    """Refuses access to the node and root. Sets the user and the group."""
    report = draft.report
    for name in NAMESPACES:
        if name in spec and spec.flag(name):
            report.refused_at(spec.at(name), _sentence(why_not(name)))
        elif name in spec:
            report.mapped(spec.at(name), "", "Jobs never have this.")
    for context in (spec.section("securityContext"), container.section("securityContext")):
        _check_context(context, draft)
    for port in container.sections("ports"):
        if "hostPort" in port:
            report.refused_at(port.at("hostPort"), _sentence(why_not("hostPort")))


def _check_context(context: Fields, draft: JobDraft) -> None:
    report = draft.report
    if context.flag("privileged"):
        report.refused_at(context.at("privileged"), _sentence(why_not("privileged")))
    for name, target in (("runAsUser", "user_id"), ("runAsGroup", "group_id")):
        number = context.whole(name)
        if number == 0:
            report.refused_at(
                context.at(name), "Jobs never run as root. Choose a user and group from 1.", target
            )
        elif number is not None:
            draft.put(target, number, context.at(name))
    _check_capabilities(context.section("capabilities"), draft)
    for name in ("runAsNonRoot", "allowPrivilegeEscalation", "privileged", "seccompProfile", "fsGroup",
                 "fsGroupChangePolicy", "supplementalGroups"):  # fmt: skip
        if name in context and not report.covers(context.at(name)):
            if name == "supplementalGroups":
                report.dropped(context.at(name), "Jobs have no further groups.")
            else:
                report.mapped(
                    context.at(name), "", "Fairlot sets the rights of containers itself: never root."
                )


def _check_capabilities(capabilities: Fields, draft: JobDraft) -> None:
    report = draft.report
    for one in capabilities.texts("add"):
        if one.upper().removeprefix("CAP_") in HARMLESS:
            report.dropped(
                capabilities.at("add"), f"Jobs have no capabilities, so the program has no {one[:30]}."
            )
        else:
            report.refused_at(
                capabilities.at("add"), f"Jobs have no capabilities. {one[:30]} is never allowed."
            )
    for name in ("drop", "add"):
        if name in capabilities and not report.covers(capabilities.at(name)):
            report.mapped(capabilities.at(name), "", "Jobs have no capabilities.")


def _sentence(text: str | None) -> str:
    said = text or "this is never allowed"
    return f"{said[0].upper()}{said[1:]}."
