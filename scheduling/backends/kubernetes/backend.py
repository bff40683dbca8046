"""The Kubernetes backend: runs gangs as Jobs or as bare pods (pods without a Job), and reports their state."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from kubernetes.config import ConfigException

from scheduling.backends.base import (
    BackendError,
    ClusterEvent,
    FileList,
    FilesNotReady,
    Gang,
    Input,
    LogChunk,
    NodeGpus,
    NoSuchTerminal,
    Observation,
    OpenFile,
    OpenTerminal,
    ResultList,
    Sample,
    Unanswered,
    Use,
)
from scheduling.backends.files_to_copy import with_copy
from scheduling.backends.kubernetes import (
    checkpoint_files,
    claims,
    mpi,
    objects,
    probes,
    reader_pods,
    roles,
    terminals,
)
from scheduling.backends.kubernetes.api import Api, Object, Refused, Unauthorized, Unreachable
from scheduling.backends.kubernetes.cluster_cache import ClusterCache
from scheduling.backends.kubernetes.cluster_events import SELECTORS, ClusterEvents
from scheduling.backends.kubernetes.code_delivery import with_code
from scheduling.backends.kubernetes.gang_ungater import GangUngater
from scheduling.backends.kubernetes.log_stream import LogContext, files_of
from scheduling.backends.kubernetes.logs import SILENCE_SECONDS, Follower
from scheduling.backends.kubernetes.objects import CHECKPOINTS, INPUTS, JOB, OWNER
from scheduling.backends.kubernetes.orders import (
    FORBIDDEN,
    JOBS,
    PODS,
    Commands,
    NotOurs,
    Orders,
    Outcome,
    StillThere,
    delete_pod,
)
from scheduling.backends.kubernetes.podgroups import PodGroups
from scheduling.backends.kubernetes.preparation import resume_report, with_requirements, with_resume
from scheduling.backends.kubernetes.probes import NameTaken
from scheduling.backends.kubernetes.reader_pods import NoReader, NotReachable, Reader, Readers
from scheduling.backends.kubernetes.reflector import Mirror, Reflector
from scheduling.backends.kubernetes.standalone_pods import BarePodOrders
from scheduling.backends.kubernetes.transcript import read_mark
from scheduling.backends.logfiles import LogFiles
from scheduling.core.rate_limiter import Limit

logger = logging.getLogger(__name__)
T = TypeVar("T")

ALL_JOBS, ALL_PODS, NODES = "/apis/batch/v1/jobs", "/api/v1/pods", "/api/v1/nodes"
EVENTS = "/api/v1/events"
# How long to wait for the first lists of objects, which take a while on a large cluster.
FILL_SECONDS = 120.0
# Kubelets send the signals. With a grace period of 0 the API server would forget a pod that still runs.
SHORTEST_GRACE = 1
# Threads that give orders in parallel. An order mostly waits for the API server.
AT_ONCE = 16
# How long a process believes that a reader of files is still there, without asking the API server.
READER_SECONDS = 5.0
MOST_KNOWN_READERS = 1000
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class Tenancy(Protocol):
    """The type of a function that returns the namespace of a job's tenant."""

    def __call__(self, job_id: int) -> str:
        """Returns the namespace of the job's tenant. Raises KeyError for an unknown job."""


class Limited(Api):
    """An API client that limits the rate of its writes. All of Fairlot's processes share the limit.

    If the API server answers with status 429 (too many requests), all of these processes pause their writes.
    """

    def __init__(self, kubeconfig: Mapping[str, Any], limit: Limit) -> None:
        super().__init__(kubeconfig)
        self._limit = limit

    def _write(self, *args: Any, **kwargs: Any) -> Object:
        self._limit.take()
        try:
            return super()._write(*args, **kwargs)
        except Refused as refusal:
            if refusal.code == 429:
                self._limit.hold(max(1.0, refusal.retry_after))
            raise


@dataclass
class _Watch:
    """A running watch of the cluster: its reflectors, their threads, and the caches that the reflectors fill."""

    view: ClusterCache
    reflectors: list[Reflector]
    follower: Follower
    cluster_events: ClusterEvents
    threads: list[threading.Thread]

    @property
    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self.threads)


class KubernetesBackend:
    """Runs gangs on one cluster. Any process may give orders. Only one process at a time may watch the cluster, by
    iterating over `changes`.

    - `owner`: identifies this installation of Fairlot in the labels of its objects.
    - `logs`: the folder that contains one folder per job. At most `log_streams` logs are followed at the same time.
    - `settle`: called with the API client and a job ID. Creates the namespace of the job's tenant if it is missing.
    - `preload`: called with a job ID. Reads from the database what `settle` needs for this job.
    - `readers`: how the portal reads checkpoints (reader_pods.py).
    - `is_bare`: called with a job ID; returns whether the job runs as a bare pod, that is, without a Job. The result
      for a job never changes.
    """

    orders_at_once = AT_ONCE
    fill_seconds = FILL_SECONDS

    def __init__(
        self,
        *,
        api: Callable[[], Api],
        owner: str,
        namespace_of: Tenancy,
        settle: Callable[[Api, int], None] = lambda api, job_id: None,
        preload: Callable[[int], None] = lambda job_id: None,
        is_bare: Callable[[int], bool] = lambda job_id: False,
        logs: Path,
        log_limit_bytes: int,
        log_streams: int,
        checkpoint_claim: str = "",
        readers: Readers | None = None,
        ungater: GangUngater | None = None,
    ) -> None:
        self._api_of = api
        self._owner = owner
        self._namespace_of = namespace_of
        self._settle = settle
        self._preload = preload
        self._is_bare = is_bare
        self.logs, self._log_limit, self._log_streams = logs, log_limit_bytes, log_streams
        self._checkpoint_claim = checkpoint_claim
        self.patience_seconds = objects.PATIENCE_SECONDS
        self._readers = readers or Readers()
        self._known_readers: dict[int, tuple[Reader, float]] = {}
        self._ungater = ungater or GangUngater()
        self._groups = PodGroups()
        self._lock = threading.Lock()
        self._known_api: Api | None = None
        self._watch: _Watch | None = None

    @property
    def api(self) -> Api:
        return self._opened()

    def _opened(self) -> Api:
        """Returns the API client. Creates the client on first use, because connections must not be shared across a
        fork."""
        with self._lock:
            if self._known_api is None:
                try:
                    self._known_api = self._api_of()
                except ConfigException as error:
                    raise BackendError(f"the kubeconfig cannot be used: {error}") from None
            return self._known_api

    def prepare(self) -> None:
        """Checks that the API server answers and accepts the credentials. Raises BackendError if it does not."""
        with _as_backend_errors("the connection to the cluster cannot be checked"):
            self.api.get(ALL_JOBS, limit=1)

    # --- orders --------------------------------------------------------------------------------

    def preload(self, job_id: int) -> None:
        """Loads the job's namespace and the kubeconfig, so that later orders to the job do not read the database."""
        with _as_backend_errors(f"the namespace and kubeconfig for job {job_id} cannot be loaded"):
            self._preload(job_id)
        self._opened()

    def start(self, gang: Gang) -> None:
        """Starts the gang under its epoch (the number of the job's attempt).

        Does nothing if this epoch was already started or stopped, or if the job has a later epoch. Raises BackendError
        if the gang cannot start, for example because its Job has already ended.
        """
        if (gang.inputs or gang.copies) and not self._checkpoint_claim:
            raise BackendError(
                "the files of earlier jobs cannot be read, because this cluster has no claim for checkpoints"
            )
        report = resume_report(gang)
        gang = _with_copy(with_code(with_requirements(with_resume(mpi.with_keys(gang)))))
        pod = objects.Pod(
            image=gang.environment_name,
            command=gang.command,
            environment=gang.environment,
            gpus=len(gang.workers[0].gpu_indices),
            gpu_resource=gang.gpu_resource or objects.NVIDIA,
            grace_seconds=gang.grace_seconds,
            progress_pattern=gang.progress_pattern,
            checkpoint_claim=self._checkpoint_claim,
            patience_seconds=self.patience_seconds,
            endpoint=gang.endpoint,
            secrets=gang.secrets,
            mounts=gang.mounts,
            inputs=gang.inputs,
            container=gang.container,
            bounds=gang.bounds,
            resume_report=report,
        )
        nodes = [worker.node for worker in sorted(gang.workers, key=lambda worker: worker.rank)]
        attempt = objects.Attempt(
            gang.epoch, str(gang.token), gang.generation, nodes, may_have_begun=gang.may_have_begun
        )
        with _as_backend_errors(f"job {gang.job_id} cannot be started"):
            self._settle(self.api, gang.job_id)
            claims.check(self.api, self._namespace_of(gang.job_id), gang.mounts)
            orders = self._orders(gang.job_id)
            # The first part is the first to know of the attempt, and so decides whether the order is too late.
            for number, (its_pod, its_attempt) in enumerate(roles.split(gang, pod, attempt)):
                outcome = orders.of_part(number).start(gang.job_id, its_pod, its_attempt)
                if outcome is not Outcome.DONE:
                    break
        if outcome is Outcome.FINISHED:
            raise BackendError("the job's Kubernetes Job has already ended")

    def stop(self, *, job_id: int, epoch: int, token: UUID, grace_seconds: float) -> None:
        """Orders the lease's pods to stop: the kubelets send SIGTERM, and SIGKILL after the grace period.

        The grace period is the shorter of the pod's own grace period and `grace_seconds`. `epoch` and `token` identify
        the lease.
        """
        with _as_backend_errors(f"job {job_id} cannot be stopped"):
            outcome = self._order_stop(job_id, epoch, str(token))
            if outcome is Outcome.DONE:
                self._shorten(job_id, epoch, grace_seconds)

    def freeze(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Always raises BackendError, because Kubernetes cannot suspend a running container.

        Gangs on Kubernetes are preempted by checkpoint and restart instead.
        """
        raise BackendError("Kubernetes cannot suspend running containers")

    def thaw(self, gang: Gang) -> None:
        """Starts the gang again from its checkpoint, because Kubernetes cannot resume suspended containers."""
        self.start(gang)

    def forget(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Removes a gang from this process's cache, if it no longer exists in the cluster and its latest lease has the
        token `token`.

        Deletes nothing in the cluster.
        """
        if self._watch:
            self._watch.view.forget(job_id, token)

    def remove_files(self, *, job_id: int) -> None:
        """Deletes the job's logs, and its Job or bare pod if one still exists. Raises BackendError while the job
        runs."""
        with _as_backend_errors(f"job {job_id} cannot be removed"):
            orders = self._orders(job_id)
            lead = orders.find(job_id)
            parts = objects.parts_of(lead) if lead is not None else 0
            others = [orders.of_part(number).find(job_id) for number in range(1, parts)]
            there = [
                one for one in (*others, lead) if one is not None
            ]  # the lead, which names the others, last
            if not all(map(objects.is_at_rest, there)):
                raise BackendError(f"job {job_id} is still running")
            for one in there:
                self.api.delete(self._path(one), uid=one["metadata"]["uid"])
            try:
                _remove(self.logs / str(job_id))
            except OSError as trouble:
                raise BackendError(f"the logs of job {job_id} cannot be removed: {trouble}") from trouble

    def announce(self, *, service: int, name: str, job_id: int) -> None:
        """Creates a Kubernetes Service called `name` in the namespace of the tenant of the job `job_id`.

        The endpoints of the Kubernetes Service are the ready replicas of Fairlot's service with ID `service`.
        """
        with _as_backend_errors(f"the Service {name} cannot be created"):
            self._settle(self.api, job_id)
            probes.announce(self.api, self._namespace_of(job_id), name, service=service, owner=self._owner)

    def withdraw(self, *, service: int, name: str, job_id: int) -> None:
        """Deletes the Kubernetes Service called `name` if it belongs to Fairlot's service with ID `service`.

        The Kubernetes Service is in the namespace of the tenant of the job `job_id`.
        """
        with _as_backend_errors(f"the Service {name} cannot be deleted"):
            probes.withdraw(self.api, self._namespace_of(job_id), name, service=service, owner=self._owner)

    # --- reports -------------------------------------------------------------------------------

    def observe(self) -> Sequence[Observation]:
        """Returns the state of the latest lease of every gang.

        The process that watches the cluster reads the state from its cache. Other processes ask the API server.
        """
        return self._view().everything()

    def changed(self) -> Sequence[Observation]:
        """Returns the observations that changed since the last call. A process that does not watch the cluster gets all
        observations instead."""
        return self._watch.view.changed() if self._watch else self.observe()

    def use(self) -> Sequence[Use]:
        """Returns an empty sequence, because GPU use comes from the cluster's metrics
        (scheduling/clusters/metrics.py)."""
        return ()

    def cluster_events(self) -> Sequence[ClusterEvent]:
        """Returns the cluster's events about jobs since the last call. Processes that do not watch get none."""
        return self._watch.cluster_events.take() if self._watch else ()

    def staleness(self) -> float:
        """Returns the age in seconds of the cluster's state in the cache.

        Returns 0 in processes that do not watch the cluster, because they ask the API server each time.
        """
        return self._watch.view.staleness() if self._watch else 0.0

    def samples(self) -> Sequence[Sample]:
        """Returns nothing, because Fairlot reads the metrics of pods from the cluster's Prometheus server."""
        return ()

    def advance(self) -> None:
        """Opens the scheduling gates of gangs whose pods all exist. Stops gangs that fail to start or have lost a
        worker.

        Does nothing in processes that do not watch the cluster.
        """
        if self._watch:
            with _as_backend_errors("the progress of gangs that are starting cannot be checked"):
                self._ungater.advance(self.api, self._watch.view, self._orders)

    def node_gpus(self) -> Sequence[NodeGpus] | None:
        """Returns the GPUs of all nodes if a node has changed or the last result is old; otherwise None.

        Always returns None in processes that do not watch the cluster.
        """
        return self._watch.view.node_gpus() if self._watch else None

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`.

        `last_attempt`: the epoch of the last attempt whose output the caller expects; 0 if no attempt ran. The chunk's
        `complete` is true if the chunk reaches the end of the log, and no attempt up to `last_attempt` will write more.
        """
        files = files_of(self.logs, job_id)

        def is_over() -> bool:
            mark = read_mark(files, rank)
            return mark.done and mark.epoch >= last_attempt if mark else not last_attempt

        return files.read(rank, offset, limit, is_over=is_over)

    def log_size(self, *, job_id: int, rank: int) -> int:
        """Returns the current size of a rank's log in bytes; 0 if there is no log."""
        return files_of(self.logs, job_id).size(rank)

    def log_times(self, *, job_id: int) -> LogFiles:
        """Returns a reader of the times of the job's logs."""
        return files_of(self.logs, job_id)

    def log_ranks(self, *, job_id: int) -> Sequence[int]:
        """Returns the ranks for which the job has a log."""
        return files_of(self.logs, job_id).ranks()

    def files_are_ready(self, *, job_id: int) -> bool:
        """Returns whether the job has a reader that is ready. See Backend.files_are_ready."""
        return self._reader(job_id) is not None

    def start_reader(self, *, job_id: int) -> bool:
        """Creates the job's reader, if there is none. Returns whether it did."""
        with self._or_elsewhere(job_id), _as_backend_errors("the reader of the files cannot be started"):
            try:
                return self._readers.start(
                    self.api, self._namespace_of(job_id), self._checkpoint_claim, job_id, owner=self._owner
                )
            except Refused as refusal:
                if refusal.code == 429 or refusal.code >= 500:
                    raise
                raise NoReader(
                    f"the API server refuses its reader: {refusal.message or refusal.reason}"
                ) from refusal

    def stop_readers(self, *, unless: Callable[[int], bool]) -> None:
        """Removes readers that have ended, that do not start, or of jobs for which `unless` is False."""
        with _as_backend_errors("readers of files cannot be removed"):
            reader_pods.stop_readers(self.api, owner=self._owner, unless=unless)

    def list_files(self, *, job_id: int, path: str, after: str = "", limit: int) -> FileList:
        """Returns entries of a folder in the claim for checkpoints. Raises FilesNotReady without a reader."""
        return self._read(job_id, lambda reader: reader.list_files(path, after, limit))

    def list_results(self, *, job_id: int, limit: int) -> ResultList:
        """Returns the newest files in the claim for checkpoints. Raises FilesNotReady without a reader."""
        return self._read(job_id, lambda reader: reader.list_results(limit))

    def open_file(self, *, job_id: int, path: str, offset: int = 0) -> OpenFile:
        """Opens a file in the claim for checkpoints. Raises FilesNotReady without a reader."""
        return self._read(job_id, lambda reader: reader.open_file(path, offset))

    def measure_files(self, *, job_id: int) -> None:
        """Returns None, because a claim is not measured job by job."""

    def _read(self, job_id: int, read: Callable[[Reader], T]) -> T:
        reader = self._reader(job_id)
        if reader is None:
            raise FilesNotReady("The reader of the files has ended.")
        with self._or_elsewhere(job_id):
            try:
                return read(reader)
            except NotReachable:
                self._known_readers.pop(job_id, None)
                if self._reader(job_id) == reader:
                    raise
                raise FilesNotReady("The reader of the files has ended.") from None

    def _reader(self, job_id: int) -> Reader | None:
        """Returns the job's reader if it is ready. Believes for READER_SECONDS that it is still there."""
        known, since = self._known_readers.get(job_id, (None, 0.0))
        if known is not None and time.monotonic() - since < READER_SECONDS:
            return known
        with self._or_elsewhere(job_id), _as_backend_errors("the reader of the files is not known"):
            if not self._checkpoint_claim or not self._readers.image:
                raise NoReader("")
            found = self._readers.find(self.api, self._namespace_of(job_id), job_id, owner=self._owner)
        if found is None:
            self._known_readers.pop(job_id, None)
        else:
            if len(self._known_readers) >= MOST_KNOWN_READERS:
                self._known_readers.clear()
            self._known_readers[job_id] = found, time.monotonic()
        return found

    @contextmanager
    def _or_elsewhere(self, job_id: int) -> Iterator[None]:
        """Converts NoReader to FilesElsewhere, which says how to get the files from the cluster itself."""
        try:
            yield
        except NoReader as error:
            namespace = self._namespace_of(job_id)
            raise checkpoint_files.elsewhere(job_id, namespace, self._checkpoint_claim, str(error)) from error

    def open_terminal(
        self,
        *,
        job_id: int,
        key: str,
        rows: int,
        columns: int,
        rank: int | None = None,
        is_trusted: bool = False,
    ) -> OpenTerminal:
        """Always raises: TerminalElsewhere with the command for the worker, or NoSuchTerminal if it does not run.

        Fairlot has no right to run programs in pods: with it, a stolen token could do so in every team's.
        """
        with _as_backend_errors("the worker's pod is not known"):
            namespace = self._namespace_of(job_id)
            pods = self.api.get(PODS.format(namespace), labelSelector=f"{JOB}={job_id}")["items"]
        for pod in pods:
            if pod.get("status", {}).get("phase") == "Running" and objects.rank_of(pod) == (rank or 0):
                raise terminals.elsewhere(namespace, pod)
        raise NoSuchTerminal("The worker's pod is not running.")

    def end_terminal(self, *, job_id: int, key: str) -> None:
        """Does nothing, because Fairlot opens no terminals in pods."""

    def changes(self, *, timeout: float) -> Generator[None, None, None]:
        """Watches the cluster and yields None at every change, and at least every `timeout` seconds.

        Raises BackendError if the first listing of the cluster's objects takes more than `fill_seconds`, or if the API
        server no longer accepts the credentials.
        """
        self._watch = watch = self._begin_watch()
        try:
            if not watch.view.wait_until_complete(self.fill_seconds):
                raise BackendError(
                    f"the API server has not listed its objects within {self.fill_seconds:g} s"
                )
            yield
            while watch.is_alive:
                watch.view.wait(timeout)
                yield
            raise BackendError("the API server no longer accepts the credentials")
        finally:
            self._watch = None
            for reflector in watch.reflectors:
                reflector.stop()
            watch.follower.stop()

    # --- implementation ------------------------------------------------------------------------

    def _orders(self, job_id: int) -> Commands:
        namespace = self._namespace_of(job_id)
        if self._is_bare(job_id):
            return BarePodOrders(self.api, namespace, self._owner)
        return Orders(self.api, namespace, self._owner, self._groups)

    def _order_stop(self, job_id: int, epoch: int, token: str) -> Outcome:
        orders = self._orders(job_id)
        try:
            return orders.stop(job_id, epoch=epoch, token=token)
        except Refused as refusal:
            if refusal.code != FORBIDDEN:
                raise
        # The process that should have started the job died before the namespace was complete.
        self._settle(self.api, job_id)
        return orders.stop(job_id, epoch=epoch, token=token)

    def _path(self, thing: Object) -> str:
        about, kind = thing["metadata"], PODS if objects.is_bare(thing) else JOBS
        return f"{kind.format(about['namespace'])}/{about['name']}"

    def _shorten(self, job_id: int, epoch: int, grace_seconds: float) -> None:
        """Limits the grace period of the job's running pods to `grace_seconds`. Leaves pods of attempts after `epoch`
        unchanged."""
        pods = PODS.format(self._namespace_of(job_id))
        for pod in self.api.get(pods, labelSelector=f"{JOB}={job_id}")["items"]:
            wanted = grace_seconds and grace_seconds + probes.pre_stop_seconds_of(pod)
            if objects.epoch_of(pod) > epoch or objects.has_ended(pod):
                continue
            if pod["spec"]["terminationGracePeriodSeconds"] <= wanted:
                continue
            delete_pod(self.api, pod, grace_seconds=max(SHORTEST_GRACE, round(wanted)))

    def _view(self) -> ClusterCache:
        if self._watch:
            return self._watch.view
        view = ClusterCache()
        with _as_backend_errors("the cluster's objects cannot be listed"):
            for mirror, path, query in self._kinds(view)[:2]:
                began = time.monotonic()
                found, _ = self.api.list_all(path, **query)
                mirror.replace(found, time.monotonic() - began)
        return view

    def _kinds(self, view: ClusterCache) -> list[tuple[Mirror, str, dict[str, Any]]]:
        ours = {"labelSelector": f"{OWNER}={self._owner}"}
        strangers = {"labelSelector": f"{OWNER}!={self._owner}", "fieldSelector": NOT_ENDED}
        return [
            (view.jobs, ALL_JOBS, ours),
            (view.pods, ALL_PODS, ours),
            (view.nodes, NODES, {}),
            (view.foreign_pods, ALL_PODS, strangers),
        ]

    def _begin_watch(self) -> _Watch:
        view = ClusterCache()

        def pattern_of(job_id: int) -> str:
            gang = view.gang(job_id)
            return objects.progress_pattern_of(gang.job) if gang else ""

        context = LogContext(
            self.api, self.logs, self._log_limit, pattern_of, view.record_progress, SILENCE_SECONDS
        )
        view.pod_listener = follower = Follower(context, streams=self._log_streams)
        cluster_events = ClusterEvents(view)
        reflectors = [Reflector(self.api, path, mirror, query) for mirror, path, query in self._kinds(view)]
        for events, selector in zip(cluster_events.mirrors, SELECTORS, strict=True):
            reflectors.append(Reflector(self.api, EVENTS, events, {"fieldSelector": selector}))
        threads = [
            threading.Thread(target=_run, args=(reflector,), name=reflector.path, daemon=True)
            for reflector in reflectors
        ]
        for thread in threads:
            thread.start()
        return _Watch(view, reflectors, follower, cluster_events, threads)


def _remove(folder: Path) -> None:
    """Deletes a job's log folder, if it exists. Renames the folder first, so that other processes no longer find it.

    Also deletes the renamed folder that an interrupted earlier call left.
    """
    aside = folder.with_name(f"{folder.name}.removed")
    with suppress(FileNotFoundError):
        shutil.rmtree(aside)
    with suppress(FileNotFoundError):  # the job has no logs, or they are already removed
        folder.rename(aside)
        shutil.rmtree(aside)


def _run(reflector: Reflector) -> None:
    try:
        reflector.run()
    except Unauthorized as refusal:
        logger.error("%s: %s", reflector.path, refusal)


def _with_copy(gang: Gang) -> Gang:
    """Returns the gang with a command that first copies the checkpoints of an earlier session. Returns a gang that
    copies nothing unchanged."""
    if gang.copies is None:
        return gang
    earlier = Input(f"session-{gang.copies.job_id}", gang.copies.job_id)
    folders = [(f"{INPUTS}/{earlier.name}/checkpoint", CHECKPOINTS)]
    gang = with_copy(gang, gang.copies, folders, notes_in=CHECKPOINTS)
    return replace(gang, inputs=[*gang.inputs, earlier])


@contextmanager
def _as_backend_errors(what: str) -> Iterator[None]:
    """Converts errors inside the `with` block to BackendError, whose message is for users.

    `what` says which action failed; the message begins with it. Raises the subclass Unanswered if the effect
    of a request is unknown or the API server is overloaded.
    """
    try:
        yield
    except Unreachable as trouble:
        raise Unanswered(f"{what}: the API server does not answer: {trouble}") from trouble
    except Refused as refusal:
        if refusal.code == 429 or refusal.code >= 500:
            raise Unanswered(
                f"{what}: the API server cannot handle the request now: {refusal.message}"
            ) from refusal
        raise BackendError(
            f"{what}: the API server refuses the request: {refusal.message or refusal.reason}"
        ) from refusal
    except (NotOurs, StillThere, NameTaken) as trouble:
        raise BackendError(f"{what}: {trouble}") from trouble
    except KeyError as missing:
        raise BackendError(f"{what}: job {missing} does not exist") from missing
