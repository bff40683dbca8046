"""Reads uploads of code from requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest

from scheduling.core.code_archives import Packed, pack_files
from scheduling.jobs.code import bounds

FIELD = "code_files"  # of the form, and of multipart calls of the API


def packed_files(request: HttpRequest) -> Packed | None:
    """Returns the files that a form or a multipart call contains, as one archive; None if it contains no files.

    A single archive is unpacked. Raises Refused for files that cannot be a job's code.
    """
    sent: Sequence[UploadedFile[Any]] = request.FILES.getlist(FIELD)
    if not sent:
        return None
    return pack_files([(one.name or "", one.read()) for one in sent], bounds())


def sent_as(request: HttpRequest) -> str:
    """Returns the name of the only file that a form or a multipart call contains; "" if it contains several or none."""
    sent: Sequence[UploadedFile[Any]] = request.FILES.getlist(FIELD)
    return (sent[0].name or "") if len(sent) == 1 else ""
