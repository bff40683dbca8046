"""Secrets of a local job exist only in its processes and in files that only its user can read. The job's end removes
them."""

from __future__ import annotations

import os
import signal
import stat

from scheduling.backends.base import End, Phase, SecretFolder, Secrets
from scheduling.backends.local import secret_files
from tests.scheduling.local_rig import USER, Rig, until

TEXT = "hf_dontTellAnybody"
SECRETS = Secrets({"HF_TOKEN": TEXT}, [SecretFolder("hf", "/secrets/hf", {"token": TEXT, "user": "bob"})])
READING = """
test "$HF_TOKEN" = "$(cat "$FAIRLOT_SECRETS_DIR/hf/token")" && echo "the same for $(cat "$FAIRLOT_SECRETS_DIR/hf/user")"
mkfifo go; echo ready; read line < go
"""


def telling(rig: Rig) -> list[str]:
    """Returns the paths, relative to the backend's folder, of all files in it that contain the secret TEXT."""
    kept = (path for path in rig.root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(str(path.relative_to(rig.root)) for path in kept if TEXT.encode() in path.read_bytes())


def test_a_gang_finds_its_secrets_and_its_end_removes_them(rig: Rig) -> None:
    gang = rig.start(rig.gang(READING, workers=2, secrets=SECRETS))
    for rank in range(2):
        rig.wait_for_log("ready", rank=rank)
        assert rig.log(rank=rank) == "the same for bob\nready\n"
    rig.wait(gang, Phase.RUNNING)
    [token] = telling(rig)
    assert token == "1/secrets/1/files/hf/token"
    about = os.lstat(rig.root / token)
    assert about.st_uid == os.getuid()
    assert stat.S_IMODE(about.st_mode) == (0o640 if rig.has_users else 0o600)
    assert about.st_gid == (USER if rig.has_users else os.getgid())
    assert stat.S_IMODE(os.lstat(rig.root / "1" / "secrets").st_mode) == (0o710 if rig.has_users else 0o700)
    for rank in range(2):
        (rig.files().folder / "work" / f"rank-{rank}" / "go").write_text("on\n")
    assert rig.wait(gang).end is End.SUCCEEDED
    assert telling(rig) == []
    assert not list((rig.root / "1" / "secrets").iterdir())


def test_a_gang_that_is_stopped_before_it_began_leaves_no_secrets(rig: Rig) -> None:
    gang = rig.gang("sleep 600", secrets=SECRETS)
    files = rig.files()
    files.make()
    secret_files.write(files, gang.epoch, gang.secrets)
    assert telling(rig)
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert telling(rig) == []


def test_secrets_of_a_killed_supervisor_are_removed(rig: Rig) -> None:
    gang = rig.start(rig.gang(READING, secrets=SECRETS))
    rig.wait_for_log("ready")
    rig.wait(gang, Phase.RUNNING)
    os.kill(rig.supervisor(gang), signal.SIGKILL)
    assert rig.wait(gang).end is End.LOST
    assert telling(rig) == []


def test_each_attempt_has_its_own_secrets(rig: Rig) -> None:
    print_it = 'trap "exit 0" TERM; echo "attempt $FAIRLOT_EPOCH: $HF_TOKEN"; sleep 600 & wait'
    first = rig.start(rig.gang(print_it, secrets=Secrets({"HF_TOKEN": "old"})))
    rig.wait_for_log("attempt 1: old")
    rig.stop(first)
    second = rig.gang(print_it, epoch=2, secrets=Secrets({"HF_TOKEN": "new"}))
    until(lambda: (rig.backend.start(second), rig.log().count("attempt 2: new"))[1], "the second attempt")
    rig.stop(second)
    rig.wait(second)
    assert not list((rig.root / "1" / "secrets").iterdir())


def test_the_end_of_an_older_attempt_keeps_the_secrets_of_the_next(rig: Rig) -> None:
    files = rig.files()
    files.make()
    secret_files.write(files, 2, SECRETS)
    rig.stop(rig.gang("true", epoch=1))
    assert secret_files.take_variables(files, 2) == {"HF_TOKEN": TEXT}


def test_links_in_their_place_are_never_followed(rig: Rig) -> None:
    """A job may put a symbolic link in place of its folder of secrets; Fairlot neither writes to the link's target nor
    empties it."""
    other = rig.root / "others"
    (other / "1").mkdir(parents=True)
    (other / "1" / "kept").write_text("kept")
    files = rig.files()
    files.make()
    (files.folder / "secrets").symlink_to(other)
    gang = rig.start(rig.gang("true", secrets=SECRETS))
    assert rig.wait(gang).end is End.SUCCEEDED
    assert (other / "1" / "kept").read_text() == "kept"
    assert telling(rig) == []


def test_files_elsewhere_are_refused_with_where_they_may_be(rig: Rig) -> None:
    elsewhere = Secrets(folders=[SecretFolder("hf", "/data/hf", {"token": TEXT})])
    seen = rig.wait(rig.start(rig.gang("true", secrets=elsewhere)))
    assert seen.end is End.START_FAILED
    assert "below /secrets ($FAIRLOT_SECRETS_DIR) on this machine" in seen.message
    assert telling(rig) == []
