"""The endpoint that takes uploads of code for jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from ninja import Query, Router
from ninja.responses import Status

from accounting.core.errors import Refused
from portal.api.code import schemas
from portal.api.jobs.endpoints import own_team
from portal.submit.uploads import FIELD, packed_files, sent_as
from portal.user_request import ApiRequest
from scheduling.core.code_archives import pack_archive
from scheduling.jobs.code import bounds, upload_code
from scheduling.jobs.proposals import proposals_of

router = Router(tags=["Jobs"])
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES = {
    "schema": {
        "type": "object",
        "required": [FIELD],
        "properties": {FIELD: {"type": "array", "items": {"type": "string", "format": "binary"}}},
    }
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": BINARY, "application/gzip": BINARY, "multipart/form-data": FILES},
    }
}


@router.post("/code", response={201: schemas.Upload}, url_name="code", openapi_extra=BODY)
def upload(
    request: ApiRequest,
    team: Annotated[str, Query(max_length=500)] = "",
    name: Annotated[
        str, Query(max_length=500, description="Name of the archive or folder, for `proposals`.")
    ] = "",
) -> Status[Any]:
    """Uploads code for the jobs of a team, and returns the digest by which a job specification names it.

    The body is a zip, tar.gz or tar archive, or multipart/form-data with files named `code_files`: one archive, or
    single files without folders. The same files have the same digest. `team` is the slug of the team; it may be left
    out by members of one team. `proposals` has values for a job with these files.
    """
    tenant = own_team(request.auth, team)
    if request.content_type == "multipart/form-data":
        packed = packed_files(request)
        if packed is None:
            raise Refused(f"The call contains no files. Send them as {FIELD}.", FIELD)
    else:
        packed = pack_archive("", request.body, bounds())
    made = upload_code(actor=request.auth, tenant=tenant, packed=packed)
    shown = {name: getattr(made, name) for name in ("digest", "size", "unpacked", "files", "paths")}
    proposals = asdict(proposals_of(packed.content, name or sent_as(request)))
    return Status(201, shown | {"team": tenant.slug, "proposals": proposals})
