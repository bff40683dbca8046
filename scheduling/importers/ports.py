"""Takes over ports and readiness probes."""

from __future__ import annotations

from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate
from scheduling.spec.job_spec import URL_PATH

LEAST, MOST = 1024, 65_535
INSTEAD = 8080  # of a port below 1024


def put_port(draft: JobDraft, port: int, source: str) -> None:
    """Sets the port at which the first worker answers. Only one is taken over."""
    if "port" in draft:
        if draft.spec["port"] != port:
            draft.report.dropped(
                source, f"A job has one port, which is {draft.spec['port']}. Others cannot be reached."
            )
        else:
            draft.report.mapped(source, "port")
    elif LEAST <= port <= MOST:
        draft.put("port", port, source, "The program must listen at the port that the variable PORT names.")
    elif 0 <= port < LEAST:
        draft.put(
            "port", INSTEAD, source,
            f"Programs do not run as root, so they cannot listen at port {port}. Let the program listen at the port"
            " that the variable PORT names.", Fate.APPROXIMATED,
        )  # fmt: skip
    else:
        draft.report.refused_at(source, f"{port} is not a port.", "port")
    if "port" in draft:
        drop_variable(draft, source)


def drop_variable(draft: JobDraft, source: str) -> None:
    """Leaves out the variable PORT of a job with a port, because Fairlot sets it."""
    if draft.spec.get("variables", {}).pop("PORT", None) is not None:
        draft.report.remark(
            Fate.DROPPED, source, "variables.PORT", "Fairlot sets the variable PORT to the port of the job."
        )


def put_readiness(
    draft: JobDraft, path: str, source: str, *, period: int | None = None, failures: int | None = None
) -> None:
    """Sets the path of the readiness probe, and how often it is asked for."""
    if not URL_PATH.fullmatch(path):
        draft.report.dropped(
            source, "This is not a plain path such as /health. An open port counts as ready."
        )
        return
    draft.put("readiness_path", path, source)
    if period:
        draft.spec["readiness_period_seconds"] = min(max(period, 1), 300)
    if failures:
        draft.spec["readiness_failures"] = min(max(failures, 1), 100)
