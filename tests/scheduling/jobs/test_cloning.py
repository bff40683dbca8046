"""A clone gets a name that no other job of the team has."""

from __future__ import annotations

import pytest

from accounting.core.errors import NotAllowed
from scheduling.jobs.cloning import LONGEST, clone_job, free_name
from scheduling.spec.job_spec import SpecError
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def test_a_free_name_has_the_next_number_that_no_job_of_the_team_has(lab: World) -> None:
    people = lab.people
    assert free_name(people.astro, "train") == "train"
    for taken, given in (("train", "train 2"), ("train 2", "train 3"), ("resnet 50", "resnet 50 2")):
        lab.submit(people.bob, people.astro, name=taken)
        assert free_name(people.astro, taken) == given
    assert free_name(people.astro, "train") == "train 3"
    assert free_name(people.bio, "train") == "train"
    lab.submit(people.bob, people.astro, name="x" * LONGEST)
    assert free_name(people.astro, "x" * LONGEST) == "x" * (LONGEST - 2) + " 2"


def test_a_clone_differs_by_its_name_and_the_changes_alone(lab: World) -> None:
    people = lab.people
    job = lab.submit(people.bob, people.astro, name="train", variables={"LR": "0.1"})
    made = [
        clone_job(actor=people.alice, job=job, changes={"command": "other"}, request_key="k")
        for _ in range(2)
    ]
    assert made[0] == made[1] != job
    assert made[0].cloned_from == job
    assert made[0].spec == job.spec | {"name": "train 2", "command": "other"}
    assert clone_job(actor=people.bob, job=job, changes={"name": "train"}).name == "train"
    with pytest.raises(NotAllowed):
        clone_job(actor=people.charlie, job=job, changes={})
    with pytest.raises(SpecError):
        clone_job(actor=people.bob, job=job, changes={"workers": "many"})
