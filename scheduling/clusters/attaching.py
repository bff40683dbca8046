"""Actions of admins on Kubernetes clusters: attach, check, replace the kubeconfig, change settings, detach.

An action that needs the API server calls the API server before the transaction begins. The transaction then records
the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields, refused_if_taken
from accounting.core.clock import now_from_database
from accounting.core.encryption import SealError, seal, unseal
from accounting.core.errors import Refused
from accounting.core.wording import counted, fixed
from accounting.models import User
from scheduling.backends.network_sources import read_ranges
from scheduling.books.closing import note_all_nodes
from scheduling.core import pubsub
from scheduling.core.locks import lock_attachment, lock_schedule
from scheduling.models import Cluster, ClusterAccess, Job, Lease
from scheduling.shares.intervals import end_shares

if TYPE_CHECKING:  # importing the Kubernetes client takes a second, and few processes need it
    from scheduling.backends.kubernetes.checking import Findings
    from scheduling.backends.kubernetes.kubeconfig import Kubeconfig

PREFIX = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_. ]{0,61}[A-Za-z0-9])?")


def attach_cluster(
    *,
    actor: User | None,
    name: str,
    kubeconfig: str,
    namespace_prefix: str = "fairlot",
    writes_per_second: float = 50,
    writes_at_once: int = 100,
    checkpoint_claim: str = "",
) -> Cluster:
    """Attaches a Kubernetes cluster, so that jobs may run there. If a detached cluster has this name, attaches that
    cluster again; it keeps its history.

    - `namespace_prefix`: the beginning of the names of teams' namespaces.
    - `writes_per_second`, `writes_at_once`: the rate limit for write requests to the API server, and the largest burst.
    - `checkpoint_claim`: the name of the PersistentVolumeClaim for checkpoints in each team's namespace; "" for no
      claim.

    Raises Refused if an argument is invalid, or if the API server does not answer or refuses access; `field` of the
    error is the name of the argument. If the kubeconfig lacks rights, attaches the cluster anyway and describes the
    missing rights in `ClusterAccess.trouble`.
    """
    require(actor, "cluster.attach")
    name, namespace_prefix = name.strip(), namespace_prefix.strip()
    if not NAME.fullmatch(name):
        raise Refused("A name must have 1 to 63 characters: letters, digits, spaces and any of - _ .", "name")
    if not PREFIX.fullmatch(namespace_prefix):
        raise Refused(
            "A namespace prefix must have 1 to 40 characters: lower-case letters, digits and -. It must begin with a"
            " letter and must not end with -.",
            "namespace_prefix",
        )
    access = ClusterAccess(
        namespace_prefix=namespace_prefix,
        writes_per_second=writes_per_second,
        writes_at_once=writes_at_once,
        checkpoint_claim=checkpoint_claim.strip(),
    )
    check_fields(access, "writes_per_second", "writes_at_once")
    if not (0 < writes_per_second <= 10_000):
        raise Refused(
            f"Accepted: more than 0 and at most {fixed(10_000)} write requests per second.",
            "writes_per_second",
        )
    if not (0 < writes_at_once <= 10_000):
        raise Refused(f"Accepted: bursts of 1 to {fixed(10_000)} write requests.", "writes_at_once")
    _refuse_taken(Cluster.objects.filter(name=name).first())
    if access.checkpoint_claim and not CLAIM.fullmatch(access.checkpoint_claim):
        raise Refused(
            "A PersistentVolumeClaim's name may only contain lower-case letters, digits, hyphens and dots.",
            "checkpoint_claim",
        )
    parsed = _parsed(kubeconfig)
    _take(access, parsed, _asked(parsed, namespace_prefix))
    return _attach(actor, name, access)


@transaction.atomic(durable=True)
def _attach(actor: User | None, name: str, access: ClusterAccess) -> Cluster:
    with refused_if_taken(f"A cluster named {name} already exists.", "name"):
        cluster, is_new = Cluster.objects.get_or_create(
            name=name, defaults={"backend": Cluster.Backend.KUBERNETES}
        )
    if not is_new:
        lock_schedule(cluster.pk)
        # read after the lock was taken, like all other rows
        cluster = Cluster.objects.select_for_update().get(pk=cluster.pk)
        _refuse_taken(cluster)
        cluster.detached_at = None
        cluster.save(update_fields=["detached_at"])
        note_all_nodes(cluster, gone=False)
    access.cluster = cluster
    access.checked_at = access.changed_at = now_from_database()
    with refused_if_taken(_attached_as_other(access), "kubeconfig"):
        access.save(force_insert=True)
    told = ("server", "user", "version", "namespace_prefix", "checkpoint_claim", "trouble")
    after = {field: getattr(access, field) or None for field in told}
    verb = "cluster.attach" if is_new else "cluster.attach_again"
    audit.record(actor=actor, verb=verb, target=cluster, after=after)
    pubsub.publish(f"cluster:{cluster.pk}")
    return cluster


def replace_kubeconfig(*, actor: User | None, cluster: Cluster, kubeconfig: str) -> ClusterAccess:
    """Replaces the cluster's kubeconfig, for example to use a new token.

    Raises Refused if the new kubeconfig belongs to another cluster.
    """
    require(actor, "cluster.attach")
    before = _access(cluster)
    parsed = _parsed(kubeconfig)
    return _replace(actor, cluster, parsed, _asked(parsed, before.namespace_prefix))


@transaction.atomic(durable=True)
def _replace(actor: User | None, cluster: Cluster, parsed: Kubeconfig, found: Findings) -> ClusterAccess:
    access = _access(cluster, ClusterAccess.objects.select_for_update())
    if access.identity and found.identity and access.identity != found.identity:
        raise Refused(
            f"This kubeconfig leads to a cluster that is not {cluster.name}. Attach that cluster under another name.",
            "kubeconfig",
        )
    before = {"server": access.server, "user": access.user}
    _take(access, parsed, found)
    access.changed_at = access.checked_at = now_from_database()
    with refused_if_taken(_attached_as_other(access), "kubeconfig"):
        access.save()
    after = {"server": access.server, "user": access.user, "trouble": access.trouble or None}
    audit.record(actor=actor, verb="cluster.replace_kubeconfig", target=cluster, before=before, after=after)
    pubsub.publish(f"cluster:{cluster.pk}")
    return access


def check_cluster(*, actor: User | None, cluster: Cluster) -> ClusterAccess:
    """Checks access to the API server, records the result, and returns it.

    `actor` is None if the check is one of Fairlot's regular checks.
    """
    from scheduling.backends.kubernetes.checking import NoAnswer, look  # noqa: PLC0415 - see above

    require(actor, "cluster.check")
    access = _access(cluster)
    found: Findings | None = None
    try:
        parsed = opened_kubeconfig(access)
        found = look(parsed, namespace_prefix=access.namespace_prefix, now=now_from_database())
        trouble = found.trouble
    except (NoAnswer, SealError) as error:
        trouble = str(error)
    return _note(actor, cluster, access, found, trouble)


@transaction.atomic(durable=True)
def _note(
    actor: User | None, cluster: Cluster, asked: ClusterAccess, found: Findings | None, trouble: str
) -> ClusterAccess:
    access = _access(cluster, ClusterAccess.objects.select_for_update())
    if access.changed_at != asked.changed_at:
        return access  # the kubeconfig was replaced meanwhile, and the new one was checked then
    before = {"trouble": access.trouble or None}
    if found is not None and found.identity:
        same = ClusterAccess.objects.filter(identity=found.identity).exclude(pk=access.pk)
        if access.identity not in {"", found.identity}:
            found, trouble = None, _ANOTHER
        elif same.exists():
            found, trouble = None, _attached_as(same.get())
    if found is not None:
        _see(access, found)
    access.trouble, access.checked_at = trouble, now_from_database()
    access.save()
    after = {"trouble": access.trouble or None}
    # a regular check without a change writes no audit event, because one every few minutes would bury the others
    if actor is not None or before != after:
        audit.record(actor=actor, verb="cluster.check", target=cluster, before=before, after=after)
        pubsub.publish(f"cluster:{cluster.pk}")
    return access


@transaction.atomic(durable=True)
def set_reachable(*, actor: User | None, cluster: Cluster, ranges: str) -> ClusterAccess:
    """Sets the address ranges that jobs may reach: CIDR ranges, separated by blanks or commas.

    The network policy of a team's namespace changes when the team's next job starts. Raises Refused if a range is not
    accepted; `field` of the error is "ranges".
    """
    require(actor, "cluster.attach")
    access = _access(cluster, ClusterAccess.objects.select_for_update())
    try:
        found = read_ranges(ranges)
    except ValueError as error:
        raise Refused(f"{error}.", "ranges") from None
    access.reachable_since = now_from_database()
    return _set(actor, access, "reachable", found, "reachable_since")


@transaction.atomic(durable=True)
def set_bare_pods(*, actor: User | None, cluster: Cluster, bare_pods: bool) -> ClusterAccess:
    """Sets whether one-worker jobs run as bare pods, that is, without a Job. Applies to jobs that are submitted
    later."""
    require(actor, "cluster.attach")
    access = _access(cluster, ClusterAccess.objects.select_for_update())
    return _set(actor, access, "bare_pods", bare_pods)


def _set(actor: User | None, access: ClusterAccess, field: str, value: object, *others: str) -> ClusterAccess:
    """Sets the field `field` of the cluster's access settings to `value`, saves it, and writes the audit event.

    Also saves the fields `others`, which the caller has already changed.
    """
    before = getattr(access, field)
    setattr(access, field, value)
    access.save(update_fields=[field, *others])
    audit.record(
        actor=actor,
        verb=f"cluster.set_{field}",
        target=access.cluster,
        before={field: before},
        after={field: value},
    )
    pubsub.publish(f"cluster:{access.cluster_id}")
    return access


@transaction.atomic(durable=True)
def detach_cluster(*, actor: User | None, cluster: Cluster) -> None:
    """Detaches a cluster: deletes its kubeconfig, and ends all teams' entitlements and trades in this cluster. The
    cluster's history stays.

    The cluster may later be attached again under its name. Raises Refused while the cluster has unfinished jobs or jobs
    that hold GPUs.
    """
    require(actor, "cluster.attach")
    lock_schedule(cluster.pk)
    lock_attachment(cluster.pk)
    access = _access(cluster, ClusterAccess.objects.select_for_update())
    jobs = Job.objects.filter(cluster=cluster).unfinished().count()
    leases = Lease.objects.filter(cluster=cluster, state__in=Lease.OPEN).count()
    if jobs or leases:
        raise Refused(
            f"{_counted(cluster, jobs, leases)}. Pause the cluster, then wait until its jobs have ended or cancel them."
        )
    now, last = now_from_database(), Cluster.objects.get(pk=cluster.pk)
    end_shares(last, since=last.last_round_at, now=now)
    Cluster.objects.filter(pk=cluster.pk).update(detached_at=now, last_round_at=now)
    note_all_nodes(cluster, gone=True)
    before = {"server": access.server, "user": access.user}
    access.delete()
    audit.record(actor=actor, verb="cluster.detach", target=cluster, before=before)
    pubsub.publish(f"cluster:{cluster.pk}")


def opened_kubeconfig(access: ClusterAccess) -> Kubeconfig:
    """Returns the cluster's kubeconfig, decrypted. Raises SealError if the key that encrypted it is no longer
    configured."""
    from scheduling.backends.kubernetes.kubeconfig import load  # noqa: PLC0415 - see above

    return load(unseal(bytes(access.sealed_kubeconfig)))


def _parsed(kubeconfig: str) -> Kubeconfig:
    from scheduling.backends.kubernetes.kubeconfig import Unusable, parse  # noqa: PLC0415 - see above

    if not kubeconfig.strip():
        raise Refused("Paste a kubeconfig, or choose a kubeconfig file.", "kubeconfig")
    try:
        return parse(kubeconfig)
    except Unusable as error:
        raise Refused(str(error), "kubeconfig") from None


def _asked(kubeconfig: Kubeconfig, namespace_prefix: str) -> Findings:
    from scheduling.backends.kubernetes.checking import NoAnswer, look  # noqa: PLC0415 - see above

    try:
        return look(kubeconfig, namespace_prefix=namespace_prefix, now=now_from_database())
    except NoAnswer as error:
        raise Refused(str(error), "kubeconfig") from None


def _take(access: ClusterAccess, kubeconfig: Kubeconfig, found: Findings) -> None:
    try:
        access.sealed_kubeconfig = seal(kubeconfig.as_bytes())
    except SealError as error:
        raise Refused(str(error), "kubeconfig") from None
    access.server = kubeconfig.server
    _see(access, found)
    access.trouble = found.trouble


def _see(access: ClusterAccess, found: Findings) -> None:
    access.user, access.version = found.user[:300], found.version[:60]
    access.identity = found.identity[:60] or access.identity
    # Includes only rights outside teams' namespaces: a right in a namespace can be checked only once the namespace
    # exists.
    access.rights, access.beyond, access.podgroups = found.rights, found.beyond, found.podgroups


def _access(cluster: Cluster, among: Any = ClusterAccess.objects) -> ClusterAccess:
    access: ClusterAccess | None = among.filter(cluster=cluster).first()
    if access is None:
        raise Refused(f"{cluster.name} is not attached.")
    access.cluster = cluster  # saves a query
    return access


def _refuse_taken(cluster: Cluster | None) -> None:
    """Raises Refused if an existing cluster already has the name of a new cluster.

    `cluster` is the existing cluster with this name; None if no cluster has it. A detached Kubernetes cluster with this
    name is no error, because it can be attached again.
    """
    if cluster is None:
        return
    if cluster.detached_at is None or cluster.backend != Cluster.Backend.KUBERNETES:
        raise Refused(f"A cluster named {cluster.name} already exists.", "name")


def _attached_as_other(access: ClusterAccess) -> str:
    """Returns an error message: the Kubernetes cluster of `access` is already attached under another name. The message
    gives this name."""
    return _attached_as(ClusterAccess.objects.filter(identity=access.identity).exclude(pk=access.pk).first())


def _attached_as(other: ClusterAccess | None) -> str:
    return f"This cluster is already attached as {other.cluster.name if other else 'another cluster'}."


def _counted(cluster: Cluster, jobs: int, leases: int) -> str:
    return (
        f"{cluster.name} still has {counted(jobs, 'unfinished job')} and {counted(leases, 'lease')} of GPUs"
    )


_ANOTHER = (
    "The address in the kubeconfig now leads to another cluster than the one that was attached. Replace the"
    " kubeconfig."
)
