"""On the portal's machine each team has a user with a UID that no other team ever gets."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from accounting.actions import delete_tenant
from accounting.models import AuditEvent, Tenant
from scheduling.backends.base import BackendError, End
from scheduling.jobs.team_uids import uid_of
from scheduling.models import TeamUid
from tests.make import cast, tenant
from tests.scheduling.local_rig import Rig


def test_a_team_keeps_its_uid_and_no_other_gets_it(db: None, settings: Any) -> None:
    settings.FAIRLOT_LOCAL_UIDS = range(50_000, 50_010)
    people = cast()
    gone = tenant("Gone")
    assert [uid_of(actor=None, tenant=team) for team in (people.astro, gone)] == [50_000, 50_001]
    assert uid_of(actor=None, tenant=people.astro) == 50_000
    events = AuditEvent.objects.filter(verb="tenant.take_uid").order_by("pk")
    assert [event.after for event in events] == [{"uid": 50_000}, {"uid": 50_001}]
    delete_tenant.__wrapped__(actor=people.ada, tenant=gone)
    assert uid_of(actor=None, tenant=people.bio) == 50_002
    assert TeamUid.objects.get(uid=50_001).tenant is None


def test_the_last_uid_is_the_probes_and_then_there_are_none_left(db: None, settings: Any) -> None:
    settings.FAIRLOT_LOCAL_UIDS = range(50_000, 50_002)
    people = cast()
    assert uid_of(actor=None, tenant=people.astro) == 50_000
    with pytest.raises(BackendError, match="extend the range"):
        uid_of(actor=None, tenant=people.bio)


def test_teams_that_ask_at_once_get_different_ones(transactional_db: None) -> None:
    teams = [tenant(f"Team {number}") for number in range(6)]
    taken: list[int] = []

    def ask(team: Tenant) -> None:
        taken.append(uid_of(actor=None, tenant=team))
        connection.close()

    threads = [threading.Thread(target=ask, args=(team,)) for team in teams * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 12
    assert len(set(taken)) == 6


def test_as_root_nothing_runs_without_a_users_uid(rig: Rig) -> None:
    if not rig.has_users:
        pytest.skip("needs root")
    seen = rig.wait(rig.start(rig.gang("id -u", uid=None)))
    assert (seen.end, rig.log()) == (End.START_FAILED, "")
    assert "no user account on this machine" in seen.message


def test_another_teams_job_in_an_old_folder_gets_it_whole(rig: Rig) -> None:
    """A job can still read and change its files in a folder from the time before teams had Unix users.

    At first all files in this folder belong to root. Files outside, to which links lead, still belong to root
    afterwards.
    """
    if not rig.has_users:
        pytest.skip("needs root")
    folder = rig.files().folder / "checkpoint" / "deep"
    folder.mkdir(parents=True)
    (folder / "state").write_text("7")
    (rig.root / "others").write_text("not the job's")
    (folder / "link").symlink_to(rig.root / "others")
    (folder / "second name").hardlink_to(rig.root / "others")
    gang = rig.start(rig.gang('cd "$FAIRLOT_CHECKPOINT_DIR/deep"; cat state; echo 8 >state; ls -1'))
    assert rig.wait(gang).end is End.SUCCEEDED
    assert rig.log() == "7link\nsecond name\nstate\n"
    assert (folder / "state").read_text() == "8\n"
    assert (rig.root / "others").stat().st_uid == 0
