"""Reader pods: short-lived pods in a team's namespace through which the portal reads the checkpoints of one job.

Such a pod mounts the job's folder of the claim, and nothing else, read-only. It runs as the job's user, without GPUs,
rights or a token, and serves files to those who know its secret (reader_program.py). It ends when nobody has read for
IDLE_SECONDS. The pod has everything that Fairlot knows of it, so any process can find, use and remove it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3

from scheduling.backends.base import (
    BackendError,
    FileEntry,
    FileKind,
    FileList,
    FilesNotReady,
    FileUnreadable,
    NoSuchFile,
    ResultList,
)
from scheduling.backends.file_names import name_of, names_of
from scheduling.backends.kubernetes import objects, probes, reader_program
from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused, Taken
from scheduling.backends.kubernetes.namespaces import JOB_ACCOUNT, MANAGED
from scheduling.backends.kubernetes.objects import JOB, OURS, job_name
from scheduling.backends.kubernetes.orders import PODS, delete_pod

logger = logging.getLogger(__name__)

# Marks reader pods with the installation of Fairlot. Gangs have the label fairlot.io/owner instead, so that nothing
# takes a reader for a gang.
READER = f"{OURS}/reader"
OF_JOB = "files-"  # begins the value of the label fairlot.io/job of reader pods
NONCE = f"{OURS}/nonce"
FOLDER = "/files"
PORT = 8080
IDLE_SECONDS = 300
LONGEST_SECONDS = 2 * 3600
START_SECONDS = 600  # in which a reader must be ready; it is removed then
MOST_IN_TEAM = 10
CONNECT_SECONDS, READ_SECONDS = 3.0, 60.0
LONGEST_LIST = 32 * 1024 * 1024  # bytes of a page of a folder
LONGEST_REFUSAL = 4096
LONGEST_AGE = 1e10  # seconds; some hundred years
WORD = re.compile(r"[0-9a-f-]{1,80}", re.ASCII)
# Reasons of a failed pod in whose place another one may start.
GONE = {"DeadlineExceeded", "Evicted", "NodeShutdown", "Preempting", "Terminated"}
# Reasons of a waiting container that only people can mend.
HOPELESS = {
    "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff",
    "InvalidImageName", "RunContainerError",
}  # fmt: skip


class NoReader(BackendError):
    """Raised if the cluster cannot run a reader, or the portal cannot reach it. The message gives users the reason."""


class NotReachable(NoReader):
    """Raised if nothing answers at the address of a reader that runs."""


class User(NamedTuple):
    """The IDs with which a job's pods run."""

    uid: int = objects.USER
    gid: int = objects.USER


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of one installation of Fairlot.

    - `image`: the image, which must have Python 3.11 or newer as `python3`. Empty: there are no readers.
    - `secret_of`: returns the secret of a reader, whose name and nonce are given. Only this installation can tell it.
    - `user_of`: returns the IDs with which the pods of a job run.
    - `port`: on which readers listen.
    """

    image: str = ""
    port: int = PORT
    secret_of: Callable[[str, str], str] = lambda name, nonce: ""
    user_of: Callable[[int], User] = lambda job_id: User()

    def find(self, api: Api, namespace: str, job_id: int, *, owner: str) -> Reader | None:
        """Returns the job's reader if it is ready; None if there is none.

        Raises FilesNotReady while it starts, and NoReader if it cannot start.
        """
        pod = _look_up(api, namespace, job_id, owner=owner)
        if pod is None or (why := _why_not_ready(pod)) is None:
            return None
        if why:
            raise FilesNotReady(why)
        _, address = probes.ready_since([pod])
        about = pod["metadata"]
        return Reader(address, self.secret_of(about["name"], about["annotations"][NONCE]))

    def start(self, api: Api, namespace: str, claim: str, job_id: int, *, owner: str) -> bool:
        """Creates the job's reader, in place of one that has ended. Returns False if another one is there.

        Raises NoReader if the team has too many readers.
        """
        pods = PODS.format(namespace)
        others = api.get(pods, labelSelector=f"{READER}={owner}")["items"]
        if sum(not objects.has_ended(one) for one in others) >= MOST_IN_TEAM:
            raise NoReader(
                f"the files of {MOST_IN_TEAM} jobs of this team are being read already. Try again in some minutes"
            )
        pod = _look_up(api, namespace, job_id, owner=owner)
        if pod is not None and _why_not_ready(pod) is None:
            delete_pod(api, pod)
        name, nonce = reader_name(job_id), secrets.token_hex(16)
        marks = {"labels": _labels(job_id, owner), "annotations": {NONCE: nonce}}
        try:
            api.create(
                pods,
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, **marks},
                    "spec": self._spec(job_id, claim, self.secret_of(name, nonce)),
                },
            )
        except Taken:  # another request has just created it, or the earlier one is still ending
            return False
        return True

    def _spec(self, job_id: int, claim: str, secret: str) -> Object:
        user = self.user_of(job_id)
        mount = {
            "name": "files",
            "mountPath": f"{FOLDER}/checkpoint",
            "subPath": job_name(job_id),
            "readOnly": True,
        }
        variables = {
            "PORT": str(self.port),
            "FAIRLOT_READER_FOLDER": FOLDER,
            "FAIRLOT_READER_IDLE_SECONDS": str(IDLE_SECONDS),
            # The digest alone: people who may see pods do not learn the secret.
            "FAIRLOT_READER_DIGEST": hashlib.sha256(secret.encode()).hexdigest(),
        }
        container = {
            "name": "main",
            "image": self.image,
            "command": ["python3", "-I", "-c", objects.escape_dollars(_script())],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "ports": [{"name": probes.PORT_NAME, "containerPort": self.port}],
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": self.port},
                "periodSeconds": 1,
                "failureThreshold": 10,
            },
            "volumeMounts": [mount],
            "resources": {
                "requests": {"cpu": "50m", "memory": "64Mi"},
                "limits": {"cpu": "1", "memory": "256Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "terminationGracePeriodSeconds": 5,
            "serviceAccountName": JOB_ACCOUNT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # A claim that one node mounts at a time is on the node of a job that runs.
            "tolerations": [{"key": key, "operator": "Exists"} for key in sorted(objects.TOLERATED)],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": user.uid,
                "runAsGroup": user.gid,
                "fsGroup": user.gid,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        }


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader that is ready: its address, and the secret that it wants."""

    address: str
    secret: str = field(repr=False)

    def list_files(self, path: str, after: str, limit: int) -> FileList:
        """Returns a page of a folder. Raises NotReachable, NoSuchFile and FileUnreadable."""
        answer = self._ask("list", path=path, after=after, limit=limit)
        try:
            with _broken_answers():
                found = json.loads(_whole(answer))
                if len(found["entries"]) > limit:
                    raise ValueError("too many")
                entries = [_entry(*row) for row in found["entries"]]
                return FileList(entries, str(found["after"]), is_cut=bool(found["is_cut"]))
        finally:
            answer.close()

    def list_results(self, limit: int) -> ResultList:
        """Returns the newest files that the job wrote. Raises NotReachable and FileUnreadable."""
        answer = self._ask("results", limit=limit)
        try:
            with _broken_answers():
                found = json.loads(_whole(answer))
                if len(found["entries"]) > limit:
                    raise ValueError("too many")
                entries = [_result(*row) for row in found["entries"]]
                return ResultList(entries, int(found["count"]), is_complete=bool(found["is_complete"]))
        finally:
            answer.close()

    def open_file(self, path: str, offset: int) -> RemoteFile:
        """Opens a plain file from byte `offset` on. Raises NotReachable, NoSuchFile and FileUnreadable."""
        answer = self._ask("file", path=path, offset=offset)
        try:
            with _broken_answers():
                about = json.loads(answer.headers[reader_program.DESCRIPTION])
                return RemoteFile(
                    answer,
                    size=int(about["size"]),
                    stored=int(about["stored"]),
                    age=_finite(about["age"]),
                    version=_word(about["version"]),
                    identity=_word(about["identity"]),
                )
        except BaseException:
            answer.close()
            raise

    def _ask(self, what: str, **query: Any) -> urllib3.BaseHTTPResponse:
        try:
            answer = _client().request(
                "GET",
                f"http://{self.address}/{what}?{urlencode(query)}",
                headers={"Authorization": f"Bearer {self.secret}"},
                preload_content=False,
                decode_content=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            reason = error.__cause__ or error
            raise NotReachable(
                f"nothing answers at the address {self.address} of the reader ({type(reason).__name__}). A network "
                "policy may block the portal, or FAIRLOT_PORTAL_FROM lacks its address"
            ) from error
        if answer.status == 200:
            return answer
        try:
            with _broken_answers():
                said = answer.read(LONGEST_REFUSAL).decode("utf-8", "replace")
        finally:
            answer.close()
        if answer.status == 404:
            raise NoSuchFile(said)
        if answer.status == 409:
            raise FileUnreadable(said)
        raise NotReachable(f"the reader at {self.address} answers with the status {answer.status}")


class RemoteFile:
    """A plain file of a job that a reader sends. See OpenFile in base.py."""

    def __init__(
        self,
        answer: urllib3.BaseHTTPResponse,
        *,
        size: int,
        stored: int,
        age: float,
        version: str,
        identity: str,
    ) -> None:
        self.size, self.stored, self.age, self.version, self.identity = size, stored, age, version, identity
        self._answer = answer

    def read(self, limit: int) -> bytes:
        with _broken_answers():
            return self._answer.read(limit)

    def close(self) -> None:
        self._answer.close()


def stop_readers(api: Api, *, owner: str, unless: Callable[[int], bool]) -> None:
    """Removes the readers that have ended, that have not become ready in time, and those of jobs for which `unless`
    is False."""
    pods, _ = api.list_all("/api/v1/pods", labelSelector=f"{READER}={owner}")
    now = datetime.now(UTC)
    for pod in pods:
        about = pod["metadata"]
        old = (now - datetime.fromisoformat(about["creationTimestamp"])).total_seconds() > START_SECONDS
        ready, _ = probes.ready_since([pod])
        number = (
            about["labels"].get(JOB, "").removeprefix(OF_JOB)
        )  # anyone who may create pods may set labels
        is_wanted = number.isdecimal() and unless(int(number))
        if not is_wanted or pod.get("status", {}).get("phase") == "Succeeded" or (old and ready is None):
            try:
                delete_pod(api, pod)
            except Refused as refusal:
                logger.warning("the reader %s in %s: %s", about["name"], about["namespace"], refusal)


def reader_name(job_id: int) -> str:
    """Returns the name of the job's reader, so that a job never has two."""
    return f"{job_name(job_id)}files-0"


def _look_up(api: Api, namespace: str, job_id: int, *, owner: str) -> Object | None:
    try:
        pod = api.get(f"{PODS.format(namespace)}/{reader_name(job_id)}")
    except Missing:
        return None
    if pod["metadata"].get("labels", {}).get(READER) != owner:
        raise NoReader(f"the pod {reader_name(job_id)} does not belong to this Fairlot")
    return pod


def _why_not_ready(pod: Object) -> str | None:
    """Returns why a reader is not ready, for users; "" if it is ready, and None if it has ended or is being removed.

    Raises NoReader if it cannot become ready.
    """
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") == "Succeeded":
        return None
    if status.get("phase") == "Failed":
        if status.get("reason") in GONE:
            return None
        raise NoReader(f"the reader failed: {_words_of(status) or 'its pod ended'}")
    if probes.ready_since([pod])[0] is not None:
        return ""
    for one in status.get("containerStatuses", ()):
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason") in HOPELESS:
            raise NoReader(f"the reader cannot start: {waiting.get('message') or waiting['reason']}")
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("message"):
            return f"The reader of the files waits for a node: {one['message']}"
    return "The reader of the files is starting."


def _words_of(status: Object) -> str:
    ended = [one.get("state", {}).get("terminated", {}) for one in status.get("containerStatuses", ())]
    said = [str(one.get("message") or one.get("reason") or "") for one in ended]
    return next(filter(None, said), str(status.get("message", "")))


def _labels(job_id: int, owner: str) -> dict[str, str]:
    return {**MANAGED, JOB: f"{OF_JOB}{job_id}", READER: owner, **probes.SESSION}


@cache
def _script() -> str:
    return reader_program.script()


@cache
def _client() -> urllib3.PoolManager:
    """Returns the client of this process. It keeps no connections, because each answer ends its connection."""
    return urllib3.PoolManager(
        retries=False, timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS), maxsize=1
    )


@contextmanager
def _broken_answers() -> Iterator[None]:
    """Converts the errors of an answer that is broken off or makes no sense."""
    try:
        yield
    # OverflowError: a number is infinite. RecursionError: JSON is nested deeply.
    except (
        urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise FileUnreadable("This cannot be read: the reader of the files broke off.") from error


def _entry(name: str, kind: str, size: int, age: float, why_not: str) -> FileEntry:
    name_of(name)  # raises BadPath, a ValueError, for what is no name
    return FileEntry(name, FileKind(kind), int(size), _finite(age), str(why_not))


def _result(path: str, kind: str, size: int, age: float, why_not: str) -> FileEntry:
    names_of(path)  # raises BadPath, a ValueError, for what is no path
    return FileEntry(path, FileKind(kind), int(size), _finite(age), str(why_not))


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or abs(number) > LONGEST_AGE:
        raise ValueError("no age")
    return number


def _whole(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Reads a whole answer in READ_SECONDS: a pod that sends a byte now and then holds no thread for longer."""
    until, body = time.monotonic() + READ_SECONDS, bytearray()
    while piece := answer.read1(LONGEST_LIST):
        body += piece
        if len(body) > LONGEST_LIST or time.monotonic() > until:
            raise ValueError("too long, or too slow")
    return bytes(body)


def _word(value: object) -> str:
    """Returns a text that may stand in a header. Raises ValueError for others."""
    if not isinstance(value, str) or not WORD.fullmatch(value):
        raise ValueError("not a word")
    return value
