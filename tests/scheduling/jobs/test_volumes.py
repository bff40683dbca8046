"""Operators grant volumes to teams, and job specs name granted volumes. Symbolic links cannot lead out of a volume."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from scheduling.backends.base import BackendError, End, Mount
from scheduling.backends.local.isolation import Isolation
from scheduling.jobs.preflight import preflight
from scheduling.jobs.submitting import submit_job
from scheduling.jobs.volumes import grant_volume, volumes_of, withdraw_volume
from scheduling.models import Cluster, ClusterAccess, Job, Volume
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.local_rig import Rig, until
from tests.scheduling.world import World, world


@pytest.fixture
def lab(transactional_db: None) -> World:
    """Returns a world with a Kubernetes cluster that exists only in the database."""
    made = world(v100=4, backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(
        cluster=made.cluster, sealed_kubeconfig=b"x", server="https://x", checkpoint_claim="checkpoints"
    )
    return made


def grant(lab: World, name: str = "imagenet", **more: Any) -> Volume:
    given = {"source": f"{name}-claim"} | more
    return grant_volume(actor=lab.people.olga, cluster=lab.cluster, name=name, **given)


def submit(lab: World, *names: str, owner: str = "bob") -> Job:
    tenant = lab.people.bio if owner == "charlie" else lab.people.astro
    volumes = [{"name": name} for name in names]
    return lab.submit(getattr(lab.people, owner), tenant, environment="example/train", volumes=volumes)


def held(job: Job) -> list[Mount]:
    return volumes_of(job, JobSpec.parse(job.spec))


def test_a_granted_volume_is_mounted_as_it_was_granted(lab: World) -> None:
    grant(lab)
    grant(lab, "scratch", read_only=False, tenant=lab.people.astro)
    job = submit(lab, "imagenet", "scratch")
    assert held(job) == [
        Mount("imagenet", "/volumes/imagenet", "imagenet-claim", read_only=True),
        Mount("scratch", "/volumes/scratch", "scratch-claim", read_only=False),
    ]


def test_a_volume_that_is_not_granted_is_refused_with_the_available_ones(lab: World) -> None:
    grant(lab)
    grant(lab, "scratch", tenant=lab.people.astro)
    with pytest.raises(SpecError, match="scratch is not granted to Bio in lab; available volumes: imagenet"):
        submit(lab, "imagenet", "scratch", owner="charlie")
    spec = JobSpec(name="x", command="x", environment="x", volumes=[{"name": "scratch"}])
    with pytest.raises(SpecError, match="scratch is not granted to Bio"):
        preflight(actor=lab.people.charlie, tenant=lab.people.bio, cluster=lab.cluster, spec=spec)
    other = Cluster.objects.create(name="other", backend=Cluster.Backend.KUBERNETES)
    spec = JobSpec(name="x", command="x", environment="x", volumes=[{"name": "imagenet"}])
    with pytest.raises(SpecError, match="in other; available volumes: none"):
        submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=other, spec=spec)


def test_a_teams_own_comes_before_that_of_all(lab: World) -> None:
    grant(lab)
    grant(lab, source="astros", tenant=lab.people.astro)
    assert [mount.source for mount in held(submit(lab, "imagenet"))] == ["astros"]
    assert [mount.source for mount in held(submit(lab, "imagenet", owner="charlie"))] == ["imagenet-claim"]


def test_one_that_is_withdrawn_begins_no_turn_even_if_its_name_comes_again(lab: World) -> None:
    volume = grant(lab, read_only=False)
    job = submit(lab, "imagenet")
    withdraw_volume(actor=lab.people.olga, volume=volume)
    withdraw_volume(actor=lab.people.olga, volume=volume)
    grant(lab)
    with pytest.raises(BackendError, match="imagenet was withdrawn from Astro; submit the job again"):
        held(job)
    assert [mount.read_only for mount in held(submit(lab, "imagenet"))] == [True]
    verbs = AuditEvent.objects.filter(target_type="volume").order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["volume.grant", "volume.withdraw", "volume.grant"]


def test_only_operators_grant_and_withdraw(lab: World) -> None:
    volume = grant(lab)
    for who in (lab.people.alice, lab.people.charlie):
        with pytest.raises(NotAllowed):
            grant_volume(actor=who, cluster=lab.cluster, name="x", source="x")
        with pytest.raises(NotAllowed):
            withdraw_volume(actor=who, volume=volume)


@pytest.mark.parametrize(
    ("name", "source", "field"),
    [
        ("Image Net", "claim", "name"),
        ("imagenet", "claim", "name"),  # this name exists already
        ("x", "", "source"),
        ("x", "/host/path", "source"),
        ("x", "checkpoints", "source"),  # this claim contains the checkpoints of all jobs
    ],
)
def test_an_invalid_grant_is_refused(lab: World, name: str, source: str, field: str) -> None:
    grant(lab)
    with pytest.raises(Refused) as refused:
        grant(lab, name, source=source)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("volumes", "place", "words"),
    [
        ([{"name": "a", "path": "data"}], "0.path", "is not absolute"),
        ([{"name": "a", "path": "/"}], "0.path", "would hide the whole image"),
        ([{"name": "a", "path": "/usr/local"}], "0.path", "would hide the system folder /usr"),
        ([{"name": "a", "path": "/var"}], "0.path", "would hide the system folder /var/lib"),
        ([{"name": "a", "path": "/checkpoint"}], "0.path", "would hide the system folder /checkpoint"),
        (
            [{"name": "a", "path": "/data"}, {"name": "b", "path": "/data/b"}],
            "1",
            "overlap; choose paths that do not contain each other",
        ),
        ([{"name": "a", "path": "/data"}, {"name": "a", "path": "/more"}], "1.name", "contains a twice"),
        ([{"name": "a", "hostPath": "/"}], "0.hostPath", "hostPath"),
    ],
)
def test_a_place_that_it_cannot_have_is_refused(volumes: Any, place: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({"name": "x", "command": "x", "volumes": volumes})
    assert words in refused.value.problems[f"volumes.{place}"]


def test_a_volume_is_not_in_the_way_of_a_secret() -> None:
    fields = {"volumes": [{"name": "a", "path": "/data"}], "secret_files": [{"name": "b", "path": "/data/b"}]}
    with pytest.raises(SpecError, match="overlap; choose paths that do not contain each other"):
        JobSpec.parse({"name": "x", "command": "x", **fields})


# --- on this machine ---------------------------------------------------------------------------------------


@pytest.fixture
def here(transactional_db: None, settings: Any, tmp_path: Path) -> World:
    settings.FAIRLOT_JOBS_DIR = tmp_path / "var" / "jobs"
    settings.FAIRLOT_JOBS_DIR.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    return world(v100=4)


def test_a_folder_of_this_machine_is_read_only_where_jobs_have_mounts_of_their_own(
    here: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    made = grant(here, "data", source=str(tmp_path / "link"), read_only=False)
    assert made.source == str(tmp_path / "data")
    for namespaces, name in ((True, "seen"), (False, "more")):
        found = Isolation(users=True, namespaces=namespaces, why_no_namespaces="the kernel is too old")
        monkeypatch.setattr("scheduling.jobs.volumes.isolation_in", lambda cluster, found=found: found)
        if namespaces:
            assert grant(here, name, source=str(tmp_path / "data")).read_only
            continue
        with pytest.raises(Refused, match="kernel is too old") as refused:
            grant(here, name, source=str(tmp_path / "data"))
        assert refused.value.field == "read_only"


@pytest.mark.parametrize("private", ["/", ".", "var", "var/secrets", "scheduling"])
def test_the_portals_own_folders_are_no_volumes(here: World, settings: Any, private: str) -> None:
    """Operators, who are no admins, cannot grant the portal's own folders as volumes, because these contain the
    portal's keys."""
    folder = settings.BASE_DIR / private
    if not folder.is_dir():
        pytest.skip(f"there is no {private} in this checkout")
    with pytest.raises(Refused, match="portal's own folders"):
        grant(here, "x", source=str(folder), read_only=False)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("{}/keys", "portal's own folders, the portal's keys"),
        ("{}/keys/real", "portal's own folders, the portal's keys"),
        ("{}/link-to-keys", "portal's own folders, the portal's keys"),
        ("{}/home", "home folder of the portal's user"),
        ("{}/home/.ssh", "home folder of the portal's user"),
        ("{}/link-to-ssh", "home folder of the portal's user"),
        ("/run", "services of the machine"),
        ("/run/lock", "services of the machine"),
        ("/proc/self", "services of the machine"),
        ("/dev", "services of the machine"),
    ],
)
def test_folders_that_may_hold_keys_are_no_volumes(
    here: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, words: str
) -> None:
    """Operators cannot grant the folder of a key file, the home folder of the portal's user, or links to these folders.

    A key file is one that a NAME_FILE setting names.
    """
    for name in ("keys/real", "home/.ssh"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "keys" / "real" / "sealing").write_text("key")
    (tmp_path / "keys" / "sealing").symlink_to("real/sealing")
    (tmp_path / "link-to-keys").symlink_to(tmp_path / "keys")
    (tmp_path / "link-to-ssh").symlink_to(tmp_path / "home" / ".ssh")
    monkeypatch.setenv("FAIRLOT_SEALING_KEYS_FILE", str(tmp_path / "keys" / "sealing"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path / "home")))
    with pytest.raises(Refused, match=words) as refused:
        grant(here, "x", source=folder.format(tmp_path), read_only=False)
    assert refused.value.field == "source"
    assert grant(here, "x", source=str(tmp_path / "data"), read_only=False)


def test_a_volume_that_was_granted_before_it_became_private_is_not_mounted(rig: Rig) -> None:
    mounts = [Mount("data", "/volumes/data", str(rig.root), read_only=False)]
    seen = rig.wait(rig.start(rig.gang("true", mounts=mounts)))
    assert seen.end is End.START_FAILED
    assert "the volume data is refused" in seen.message


@pytest.mark.parametrize("folder", ["data", "{}/none", "{}/var", "{}/var/jobs/cluster-1", "/"])
def test_a_volume_that_is_no_folder_or_contains_job_folders_is_refused(
    here: World, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "var" / "jobs" / "cluster-1").mkdir()
    with pytest.raises(Refused) as refused:
        grant(here, "x", source=folder.format(tmp_path), read_only=False)
    assert refused.value.field == "source"


def test_a_local_job_finds_its_volume_and_its_end_leaves_the_data(rig: Rig, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)  # a job may write to a volume only if the permissions of its folder allow this
    (data / "in").write_text("seen\n")
    mounts = [Mount("data", "/volumes/data", str(data), read_only=False)]
    script = 'cat "$FAIRLOT_VOLUMES_DIR/data/in"; echo written > "$FAIRLOT_VOLUMES_DIR/data/out"'
    for epoch in (1, 2):
        gang = rig.start(rig.gang(script, epoch=epoch, mounts=mounts))
        assert rig.wait(gang).end is End.SUCCEEDED
    assert rig.log() == "seen\nseen\n"

    def released() -> bool:
        lock = rig.files().open_run_lock()
        if lock is not None:
            os.close(lock)
        return lock is not None

    until(released, "the supervisor's end")
    rig.backend.remove_files(job_id=1)
    assert sorted(path.name for path in data.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (
            Mount("data", "/data", "/tmp", read_only=False),
            "below /volumes ($FAIRLOT_VOLUMES_DIR) on this machine",
        ),
        (Mount("data", "/volumes/data", "/no/such", read_only=False), "does not exist"),
    ],
)
def test_an_unavailable_mount_fails_the_start_with_the_reason(rig: Rig, mount: Mount, words: str) -> None:
    seen = rig.wait(rig.start(rig.gang("true", mounts=[mount])))
    assert seen.end is End.START_FAILED
    assert words in seen.message


def test_a_read_only_volume_is_one_or_is_refused(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    (tmp_path / "data" / "in").write_text("seen\n")
    mounts = [Mount("data", "/volumes/data", str(tmp_path / "data"), read_only=True)]
    seen = rig.wait(rig.start(rig.gang('cd "$FAIRLOT_VOLUMES_DIR/data"; cat in; touch out', mounts=mounts)))
    if not rig.backend.isolation.namespaces:
        assert seen.end is End.START_FAILED
        assert "cannot be kept from being written" in seen.message
        return
    assert (seen.end, seen.exit_code) == (End.FAILED, 1)
    assert rig.log().startswith("seen\n")
    assert "Read-only file system" in rig.log()
    assert not (tmp_path / "data" / "out").exists()


def test_a_link_put_in_the_place_of_a_volume_leads_nowhere(rig: Rig, tmp_path: Path) -> None:
    """With namespaces, a start fails if a symbolic link has replaced the volume's folder.

    Otherwise a job that may write to one volume could redirect another volume to a folder that jobs may not see.
    """
    (tmp_path / "secret").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "secret")
    mounts = [Mount("data", "/volumes/data", str(tmp_path / "data"), read_only=False)]
    seen = rig.wait(rig.start(rig.gang("true", mounts=mounts)))
    if rig.backend.isolation.namespaces:
        assert seen.end is End.START_FAILED
        assert "contains a symbolic link" in seen.message


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Yields a function that mounts a file system until the end of the test.

    Skips the test if this process may not mount.
    """
    with ExitStack() as stack:

        def do(*arguments: object) -> None:
            done = subprocess.run(
                ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "--lazy", str(arguments[-1])], check=True)

        yield do


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (["--bind", "/dev", "{}/data/dev"], "services of the machine"),
        (["-t", "proc", "proc", "{}/data/a b/proc"], "services of the machine"),
        (["--bind", "{}/var/jobs", "{}/data"], "folders of jobs"),
        (["--bind", "{}/var/jobs/1", "{}/data/1"], "folders of jobs"),
        (["--bind", "{}/var", "{}/data/var"], "folders of jobs"),
    ],
)
def test_a_private_folder_cannot_be_a_volume_through_a_mount(
    here: World, tmp_path: Path, mount: Callable[..., None], what: list[str], words: str
) -> None:
    what = [word.format(tmp_path) for word in what]
    for place in (Path(what[-1]), tmp_path / "var" / "jobs" / "1"):
        place.mkdir(parents=True, exist_ok=True)
    assert grant(here, "before", source=str(tmp_path / "data"), read_only=False)
    mount(*what)
    with pytest.raises(Refused, match=words) as refused:
        grant(here, "x", source=str(tmp_path / "data"), read_only=False)
    assert refused.value.field == "source"


def test_a_start_is_refused_when_jobs_folders_were_mounted_in_a_volume(
    rig: Rig, tmp_path: Path, mount: Callable[..., None]
) -> None:
    (tmp_path / "data" / "jobs").mkdir(parents=True)
    mount("--bind", rig.root, tmp_path / "data" / "jobs")
    mounts = [Mount("data", "/volumes/data", str(tmp_path / "data"), read_only=False)]
    seen = rig.wait(rig.start(rig.gang("true", mounts=mounts)))
    assert seen.end is End.START_FAILED
    assert "the volume data is refused" in seen.message


def test_mounts_in_a_writable_volume_have_no_devices(
    rig: Rig, tmp_path: Path, mount: Callable[..., None]
) -> None:
    below = tmp_path / "data" / "disk"
    below.mkdir(parents=True)
    mount("-t", "tmpfs", "tmpfs", below)
    subprocess.run(["mknod", "-m", "666", str(below / "null"), "c", "1", "3"], check=True)
    if not rig.backend.isolation.namespaces:
        pytest.skip("jobs have no mounts of their own here")
    mounts = [Mount("data", "/volumes/data", str(tmp_path / "data"), read_only=False)]
    script = 'cd "$FAIRLOT_VOLUMES_DIR/data/disk" && ls && ! cat null && grep /data/disk /proc/self/mountinfo'
    assert rig.wait(rig.start(rig.gang(script, mounts=mounts))).end is End.SUCCEEDED, rig.log()
    assert "nosuid,nodev" in rig.log()
