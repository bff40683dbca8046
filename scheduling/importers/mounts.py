"""Takes over volumes, and refuses folders of the node."""

from __future__ import annotations

import re

from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Report
from scheduling.spec.attachments import check_path

HOST_PATH = (
    "A program never gets folders of the node. Ask an operator for a volume, name it instead, or put the files into the"
    " image."
)


def refuse_host_path(report: Report, source: str) -> None:
    """Refuses the mount of a folder of the node."""
    report.refused_at(source, HOST_PATH, "volumes")


def put_volume(draft: JobDraft, name: str, path: str, source: str) -> None:
    """Mounts a volume that the foreign system would create or find by its name. If Fairlot cannot mount anything at the
    path, the volume is left out."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].strip("-") or "volume"
    taken = [one["path"] or one["name"] for one in draft.spec.get("volumes", [])]
    place = path.rstrip("/")
    try:
        check_path(place or "/")
    except ValueError as error:
        draft.report.dropped(
            source, f"{str(error)[:1].upper()}{str(error)[1:]}. Programs do not run as root."
        )
        return
    if plain in [one["name"] for one in draft.spec.get("volumes", [])] or any(
        f"{one}/".startswith(f"{place}/") or f"{place}/".startswith(f"{one}/") for one in taken
    ):
        draft.report.dropped(source, "A volume is mounted once, and not inside another one.")
        return
    draft.volume(plain, place, source)
