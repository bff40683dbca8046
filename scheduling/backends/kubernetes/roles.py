"""Splits a gang with roles into its parts: one Job for each role, with its own pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.backends import role_variables
from scheduling.backends.base import Gang, GangRole
from scheduling.backends.kubernetes import mpi, objects, rendezvous

# The port in the addresses of workers, at which any of them may listen.
PORT = 2223
INDEX = "$(FAIRLOT_ROLE_INDEX)"  # Kubernetes puts the value of the variable in


def split(
    gang: Gang, pod: objects.Pod, attempt: objects.Attempt
) -> Sequence[tuple[objects.Pod, objects.Attempt]]:
    """Returns the pods and the attempt of each part of the gang, in the order of the parts' numbers.

    `pod` and `attempt` are those of all workers, which are returned if the gang has no roles.
    """
    return list(_parts(gang, pod, attempt)) if gang.roles else [(pod, attempt)]


def _parts(
    gang: Gang, pod: objects.Pod, attempt: objects.Attempt
) -> Iterator[tuple[objects.Pod, objects.Attempt]]:
    names = {role.name: objects.job_name(gang.job_id, number) for number, role in enumerate(gang.roles)}
    hosts = _host_list(gang.roles, names, pod.gpus)
    first = 0
    for number, role in enumerate(gang.roles):
        gpus = pod.gpus if role.holds_gpus else 0
        part = objects.Part(
            number=number,
            of=len(gang.roles),
            role=role.name,
            ends_gang=role.ends_job,
            first_rank=first,
            leader=gang.leader,
            trains=role.holds_gpus and not gang.is_mpi,
            variables=_variables(gang, role, names, first, gpus),
            hosts=hosts,
            world=len(gang.workers),
        )
        nodes = attempt.nodes[first : first + role.workers]
        leads = first <= gang.leader < first + role.workers
        yield (
            replace(
                pod,
                image=role.environment_name,
                command=mpi.COMMAND if role.waits_for_mpirun else role.command,
                environment=role.environment,
                gpus=gpus,
                container=role.container,
                endpoint=pod.endpoint if leads else None,
                part=part,
            ),
            replace(attempt, nodes=nodes),
        )
        first += role.workers


def _host_list(roles: Sequence[GangRole], names: Mapping[str, str], gpus: int) -> str:
    """Returns the list of the hosts with GPUs, each with as many slots as it has GPUs."""
    held = (role for role in roles if role.holds_gpus)
    return "".join(rendezvous.hosts(names[role.name], workers=role.workers, gpus=gpus) for role in held)


def _variables(gang: Gang, role: GangRole, names: Mapping[str, str], first: int, gpus: int) -> dict[str, str]:
    """Returns the variables of all workers of `role`, whose ranks begin with `first`. `names` are those of the Jobs."""
    addresses = {
        one.name: [f"{rendezvous.host(names[one.name], index)}:{PORT}" for index in range(one.workers)]
        for one in gang.roles
    }
    found = role_variables.variables(role.name, 0, addresses)
    del found["FAIRLOT_ROLE_INDEX"]  # differs between the workers
    # Not a number yet, so it would be written as a text.
    whole = role_variables.tf_config(role.name, 0, addresses)
    found["TF_CONFIG"] = whole.removesuffix("0}}") + INDEX + "}}"
    lead = gang.roles[0]
    held = sum(one.workers for one in gang.roles if one.holds_gpus)
    meets = rendezvous.variables(names[lead.name], workers=held, gpus=gpus)
    if gang.is_mpi or not gpus:
        meets = {name: value for name, value in meets.items() if not _counts(name)}
    return (
        meets
        | role_variables.hostfile_variables(rendezvous.HOSTFILE_PATH)
        | (mpi.VARIABLES if gang.is_mpi else {})
        | found
        | {
            "FAIRLOT_WORLD_SIZE": str(len(gang.workers)),
            "FAIRLOT_FIRST_RANK": str(first),
            "FAIRLOT_TRAINS": "true" if gpus and not gang.is_mpi else "",
        }
    )


def _counts(variable: str) -> bool:
    """Returns whether the variable counts processes of a program that trains."""
    return variable in {"WORLD_SIZE", "LOCAL_RANK"} or variable.startswith("PET_")
