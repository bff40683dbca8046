"""The roles of a job specification: which are accepted, and how the workers are numbered and named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.roles import SpecOfRoles, leader_of, roles_by_rank, worker_names

PS = {"name": "ps", "gpus_per_worker": 0}
LAUNCHER = {"name": "launcher", "gpus_per_worker": 0, "ends_job": True}
some_roles = st.lists(
    st.fixed_dictionaries(
        {"name": st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), "workers": st.integers(1, 5)},
        optional={"gpus_per_worker": st.sampled_from([0, 2]), "ends_job": st.booleans()},
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda role: role["name"],
).filter(lambda roles: any(role.get("gpus_per_worker") != 0 for role in roles))


def spec(**fields: Any) -> JobSpec:
    return JobSpec.parse({"name": "a", "command": "true"} | fields)


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as refused:
        spec(**fields)
    return refused.value.problems


def test_the_number_of_workers_and_gpus_follows_from_the_roles() -> None:
    made = spec(roles=[PS, {"name": "worker", "workers": 3, "gpus_per_worker": 4}, {"name": "chief"}])
    assert (made.workers, made.gpus_per_worker, made.gpus) == (4, 4, 16)
    assert spec(gpus_per_worker=2, roles=[PS, {"name": "chief"}]).gpus == 2


@given(some_roles)
def test_workers_with_gpus_come_first_and_each_has_its_own_name(roles: list[dict[str, Any]]) -> None:
    made = spec(gpus_per_worker=2, roles=roles)
    ordered, names = roles_by_rank(made), worker_names(made)
    holds = [role.holds_gpus for role in ordered for _ in range(role.workers)]
    assert holds == sorted(holds, reverse=True)
    assert sum(holds) == made.workers
    assert len(names) == len(set(names)) == sum(role["workers"] for role in roles)
    leader = names[leader_of(ordered)].partition(" ")[0]
    ending = [role["name"] for role in roles if role.get("ends_job")]
    assert leader in ending if ending else leader_of(ordered) == 0


@given(some_roles)
def test_a_specification_with_roles_survives_yaml_and_the_database(roles: list[dict[str, Any]]) -> None:
    made = spec(gpus_per_worker=2, roles=roles)
    assert JobSpec.from_yaml(made.to_yaml()) == made
    assert JobSpec.stored(made.to_dict()) == made
    assert worker_names(SpecOfRoles.of_stored(made.to_dict())) == worker_names(made)


def test_a_job_without_roles_names_its_workers_by_rank() -> None:
    assert worker_names(spec(workers=3)) == ["0", "1", "2"]
    assert roles_by_rank(spec(workers=3)) == []


def test_an_mpi_job_that_names_no_roles_has_a_launcher_and_workers() -> None:
    assert worker_names(spec(workers=3, launch="mpi")) == ["launcher 0", "worker 0", "worker 1"]
    assert [role.ends_job for role in roles_by_rank(spec(workers=3, launch="mpi"))] == [True, False]
    assert roles_by_rank(spec(launch="mpi")) == []


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        (
            {"roles": [{"name": "a", "gpus_per_worker": 2}, {"name": "b", "gpus_per_worker": 1}]},
            "roles.1.gpus_per_worker",
            "1 differs from the 2 GPUs of the other workers",
        ),
        ({"roles": [PS]}, "roles", "at least one role must hold GPUs"),
        ({"roles": [{"name": "a"}, {"name": "a"}]}, "roles.1.name", "contains a twice"),
        ({"roles": [{"name": "A"}]}, "roles.0.name", "'A' is not the name of a role"),
        ({"roles": [{"name": "a", "workers": 0}]}, "roles.0.workers", "a whole number from 1 to 1024"),
        ({"roles": [{"name": "a", "image": "x"}]}, "roles.0.image", "enter the image in the field"),
        ({"roles": [{"name": "a", "command": "\0"}]}, "roles.0.command", "zero bytes"),
        ({"roles": [{"name": "a", "variables": {"RANK": "1"}}]}, "roles.0.variables.RANK", "set by Fairlot"),
        (
            {"secrets": {"KEY": "key"}, "roles": [{"name": "a", "variables": {"KEY": "1"}}]},
            "roles.0.variables.KEY",
            "already one of the secrets",
        ),
        ({"workers": 3, "roles": [{"name": "a"}]}, "workers", "the roles have 1 workers with GPUs"),
        ({"roles": [{"name": "a", "workers": 1024}, PS]}, "roles", "at most 1 024 workers in all"),
        ({"roles": {"name": "a"}}, "roles", "must be a list of up to 10 roles"),
        ({"roles": ["a"]}, "roles.0", "name, workers"),
        ({"launch": "mpi", "roles": [{"name": "a"}]}, "roles", "needs a launcher"),
        ({"launch": "mpi", "roles": [{**LAUNCHER, "workers": 2}, {"name": "a"}]}, "roles", "with one worker"),
        ({"launch": "mpi", "workers": 1025}, "workers", "must be at most 1 024 with launch: mpi"),
        ({"launch": "slurm"}, "launch", "mpi if the command calls mpirun"),
    ],
)
def test_roles_that_do_not_fit_together_are_refused(fields: dict[str, Any], place: str, words: str) -> None:
    found = problems(**fields)
    assert words in found[place].replace("\N{NO-BREAK SPACE}", " "), found


def test_services_and_sessions_have_no_roles() -> None:
    made = spec(roles=[{"name": "a"}], launch="")
    assert made.problems_of_endless() == {"roles": "is only for jobs that end by themselves"}
    assert "launch" in spec(launch="mpi").problems_of_endless()
