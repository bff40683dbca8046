"""Makes the job specification of a member of a sweep: puts the values of the parameters into the command and the
variables."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence

from accounting.core.wording import fixed, shown
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.members import INDEX, INDEX_VARIABLE
from scheduling.spec.placeholders import misread_in, pattern, render
from scheduling.sweeps.parameters import Values, text_of

LONGEST_NAME = 120  # of a job
LONGEST_COMMAND = 20_000
MOST_CHARACTERS = 4_000_000  # of the values of all members


def spec_of_member(base: JobSpec, index: int, values: Values) -> JobSpec:
    """Returns the specification of the member's job: `base` with the member's name, commands and variables."""
    texts = {name: text_of(value) for name, value in values.items()}
    put_in = texts | {INDEX: str(index)}
    suffix = f"-{index}"
    return base.model_copy(
        update={
            "name": base.name[: LONGEST_NAME - len(suffix)].rstrip() + suffix,
            "command": render(base.command, put_in),
            "roles": [
                role.model_copy(update={"command": render(role.command, put_in)}) for role in base.roles
            ],
            "variables": base.variables | texts | {INDEX_VARIABLE: str(index)},
        }
    )


def _uses(command: str, names: Collection[str]) -> tuple[int, Counter[str]]:
    """Returns the length of the command without what `render` puts in, and how often it puts in the text of each
    name."""
    rest, uses = len(command), Counter[str]()
    for found in pattern([*names, INDEX]).finditer(command):
        if found["escaped"]:
            rest -= len("{}")
        else:
            rest -= len(found[0])
            uses[found["name"]] += 1
    return rest, uses


def check_members(base: JobSpec, names: Collection[str]) -> None:
    """Raises SpecError if the specification cannot be combined with parameters of these names."""
    problems = {}
    taken = [name for name in (*names, INDEX_VARIABLE) if name in base.variables or name in base.secrets]
    if taken:
        problems["variables"] = (
            f"must not contain {', '.join(taken)}, because the sweep sets it for each member"
        )
    if base.port is not None:
        problems["port"] = "is only for jobs that are no members of a sweep"
    if problems:
        raise SpecError(problems)


def check_lengths(base: JobSpec, members: Sequence[Values]) -> None:
    """Raises SpecError if all values together are too long, or if a command of a member is too long once its values are
    put in."""
    texts = [text_of(value) for values in members for value in values.values()]
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise SpecError(
            {"parameters": f"must have at most {fixed(MOST_CHARACTERS)} characters in all members together"}
        )
    names = members[0].keys() if members else ()
    commands = [("command", base.command), *(("roles", role.command) for role in base.roles)]
    counted = [(field, *_uses(command, names)) for field, command in commands]
    for index, values in enumerate(members):
        filled = {name: text_of(value) for name, value in values.items()} | {INDEX: str(index)}
        # Counted rather than rendered, because a command may name its parameters thousands of times.
        for field, rest, uses in counted:
            length = rest + sum(times * len(shlex.quote(filled[name])) for name, times in uses.items())
            if length > LONGEST_COMMAND:
                what = "is" if field == "command" else "a role's command is"
                most = fixed(LONGEST_COMMAND)
                raise SpecError({field: f"{what} too long for member {index}: more than {most} characters"})


def check_places(base: JobSpec, members: Sequence[Values]) -> None:
    """Raises SpecError if a value of a member would not stay a part of one word where the command names it."""
    names = members[0].keys() if members else ()
    commands = [("command", base.command), *(("roles", role.command) for role in base.roles)]
    for field, command in commands:
        for name, why, is_misread in misread_in(command, [*names, INDEX]):
            for index, values in enumerate(members):
                text = str(index) if name == INDEX else text_of(values[name])
                if is_misread(text):
                    variable = INDEX_VARIABLE if name == INDEX else name
                    raise SpecError({field: _misread(name, why, shown(text), variable)})


def _misread(name: str, why: str, value: str, variable: str) -> str:
    return (
        f"contains {{{name}}} {why}, where the shell would not read the value {value} as a part of one word."
        f' Write {{{name}}} without quotes, as a word of its own, or use the variable: "${variable}"'
    )
