"""Response schemas of the endpoint for uploads of code."""

from __future__ import annotations

from ninja import Field, Schema


class Proposals(Schema):
    """Values for the fields of a job specification, found in the files. An empty text proposes nothing."""

    name: str = Field(description="After the archive, the folder or the only file.")
    command: str = Field(
        description="Runs the only obvious entry: `train.py`, `main.py`, `run.sh`, or else the only Python file."
    )
    requirements: str = Field(description="Text of the `requirements.txt`.")


class Upload(Schema):
    digest: str = Field(description="Name of the upload, for `code: {upload: …}` in a job specification.")
    team: str = Field(description="Slug of the team whose jobs may use the upload.")
    size: int = Field(description="Bytes of the compressed archive.")
    unpacked: int = Field(description="Bytes of all files together.")
    files: int = Field(description="Number of files.")
    paths: list[str] = Field(description="The first 50 paths.")
    proposals: Proposals
