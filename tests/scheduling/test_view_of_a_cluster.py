"""What a watcher makes of events on Jobs and pods, in whichever order they come; no cluster needed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.view import View

POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
TOKEN = uuid4()
JOB_ID = 12


def job(**status: Any) -> dict[str, Any]:
    """Of one worker, let run."""
    begin = objects.Turn(1, str(TOKEN), "A100", ["node-1"])
    made = objects.new_job(JOB_ID, POD, workers=1, owner="ours", begin=begin)
    made["metadata"] |= {"uid": "job", "namespace": "fairlot-1"}
    return made | {"status": status}


def complete() -> dict[str, Any]:
    condition = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return job(succeeded=1, conditions=[condition])


def view_of(first: dict[str, Any]) -> View:
    view = View()
    view.jobs.replace([first])
    assert [seen.phase for seen in view.news()] == [Phase.STARTING]
    return view


def test_an_end_is_told_though_its_job_is_deleted_before_anybody_has_asked() -> None:
    view = view_of(job())
    view.jobs.put(complete())
    view.jobs.remove(complete())
    [seen] = view.news()
    assert (seen.token, seen.phase, seen.end) == (TOKEN, Phase.ENDED, End.SUCCEEDED)
    assert [seen.end for seen in view.everything()] == [End.SUCCEEDED], "until it is written down"
    view.finished_with(JOB_ID, TOKEN)
    assert view.everything() == []


def test_a_tombstone_goes_when_its_end_was_told() -> None:
    view = view_of(job())
    view.jobs.put(complete())
    assert [seen.end for seen in view.news()] == [End.SUCCEEDED]
    view.jobs.remove(complete())
    assert (view.news(), view.everything()) == ([], [])


def test_a_job_that_is_deleted_before_its_end_was_ended_by_that() -> None:
    view = view_of(job())
    view.jobs.remove(job())
    assert [seen.end for seen in view.news()] == [End.DELETED]
