"""Lets a converted job take its code from a Git repository that the foreign text names."""

from __future__ import annotations

import re

from scheduling.importers import credentials
from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate

# What to do with files of the machine from which a foreign text was submitted.
BRING_FILES = (
    "Files of your machine are not a part of the text. Choose them in the section Code of the form, or upload them with"
    " fairlot files put."
)
BY_SSH = re.compile(r"(?:ssh://)?git@(?P<host>[\w.-]+)[:/](?P<path>[\w./~-]+)", re.ASCII)
ADDRESS = re.compile(r"https?://[\w.-]+(?::\d+)?/[\w./~%+-]+", re.ASCII)
REF = re.compile(r"[A-Za-z0-9_+][-A-Za-z0-9_+./]*", re.ASCII)
# An archive of a branch, tag or commit, as GitHub serves it.
ARCHIVE = re.compile(
    r"(?P<git>https://github\.com/[\w.-]+/[\w.-]+)/archive/(?:refs/(?:heads|tags)/)?(?P<ref>[\w./-]+?)\.zip",
    re.ASCII,
)
ONLY_ONE = "A job has code from one place. Let the command fetch this."


def put_git(
    draft: JobDraft, address: str, source: str, *, ref: str = "", ref_at: str = "", folder: str = ""
) -> None:
    """Sets the code of a job: a branch, tag or commit of a repository, and a folder in it."""
    report = draft.report
    found, fate, said = address.strip(), Fate.MAPPED, "Fairlot fetches it when the job is submitted."
    if by_ssh := BY_SSH.fullmatch(found):
        found, fate = f"https://{by_ssh['host']}/{by_ssh['path']}", Fate.APPROXIMATED
        said += " By https, not by ssh: a private repository needs a token, stored as a secret that code.secret names."
    if "code" in draft:
        report.dropped(source, ONLY_ONE)
        return
    if not ADDRESS.fullmatch(found) or credentials.has_credential(found):
        report.dropped(
            source, "This is not a plain address such as https://HOST/PATH. Enter it in the section Code."
        )
        return
    code = {"git": found}
    if ref and ref != "HEAD":
        if not REF.fullmatch(ref) or ".." in ref or "//" in ref:
            report.refused_at(ref_at or source, "This is not a branch, a tag or a commit.", "code")
            return
        code["ref"] = ref
    if plain := folder.strip("/").removeprefix("./").strip("."):
        code["folder"] = plain
    draft.put("code", code, source, said, fate)
    if ref_at:
        report.mapped(ref_at, "code.ref")
