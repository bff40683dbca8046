"""The command of a container as a script of /bin/sh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields

REFERENCE = re.compile(r"\$(?:\$(?=\()|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
# Variables that Kubernetes and Fairlot set, to which $(NAME) may refer without an entry in env.
GIVEN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "JOB_COMPLETION_INDEX"}
SHELLS = {"sh", "/bin/sh", "bin/sh", "/usr/bin/sh"}
ENTRYPOINT = (
    "The container runs the program of its image. Fairlot needs the command: add the image's entrypoint, which docker"
    " inspect shows, as command."
)
# A script that does nothing but wait until others answer, as init containers often do.
WAITS = re.compile(
    r"\s*(?:set\s+-\w+\s*[;\n]\s*)?(?:until|while)\b(?:(?!\bdone\b).)*"
    r"\b(?:nslookup|getent|dig|host|ping|nc|ncat|ray\s+health-check|/dev/tcp)\b(?:(?!\bdone\b).)*\bsleep\b"
    r"(?:(?!\bdone\b).)*\bdone\b\s*[;\n]?\s*(?:echo[^;&|\n]*)?\s*",
    re.DOTALL | re.ASCII,
)


def only_waits(words: Sequence[str]) -> bool:
    """Returns whether the words of a command are a script that waits until others answer, and does nothing else."""
    return len(words) > 1 and WAITS.fullmatch(words[-1]) is not None


def of_container(container: Fields, draft: JobDraft) -> tuple[str, str, str] | None:
    """Returns the script, its source and a sentence.

    Refuses a container without a command, which runs the program of its image, and returns None.
    """
    words, arguments = container.texts("command"), container.texts("args")
    if not words:
        source = container.at("args") if arguments else container.at("command")
        draft.report.refused_at(source, ENTRYPOINT, "command")
        return None
    names = {one.text("name") for one in container.sections("env")} | GIVEN
    names |= {*draft.spec.get("variables", ()), *draft.spec.get("secrets", ())}
    if arguments:
        draft.report.mapped(container.at("args"), "command", "The arguments follow the command.")
    text, said = script([*words, *arguments], names)
    return text, container.at("command"), said


def script(words: list[str], names: set[str]) -> tuple[str, str]:
    """Returns the script that runs the words of a command, and a sentence about it.

    `names` has the variables to which $(NAME) refers. A script of /bin/sh stays readable: it is not quoted again.
    """
    plain = [word for word in words if word]
    if len(plain) == 3 and plain[0] in SHELLS and re.fullmatch(r"-[exuc]*c", plain[1]):
        options = plain[1].replace("c", "").strip("-")
        body = REFERENCE.sub(lambda found: _in_script(found, names), plain[2])
        return (f"set -{options}\n{body}" if options else body), "The script of the shell."
    return " ".join(_word(word, names) for word in words), "The words of the command, quoted where needed."


def _in_script(found: re.Match[str], names: set[str]) -> str:
    if found[1] is None:
        return "$"
    return f"${{{found[1]}}}" if found[1] in names else found[0]


def _word(word: str, names: set[str]) -> str:
    """Returns a word for the shell, in which $(NAME) is replaced by the value of the variable."""
    parts, end = [], 0
    for found in REFERENCE.finditer(word):
        if found[1] is not None and found[1] not in names:
            continue
        parts.append(shlex.quote(word[end : found.start()]) if found.start() > end else "")
        parts.append("'$'" if found[1] is None else f'"${{{found[1]}}}"')
        end = found.end()
    rest = word[end:]
    return "".join(parts) + (shlex.quote(rest) if rest or not parts else "")
