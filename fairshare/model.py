"""Defines the input and output of a policy: frozen dataclasses of arrays.

Sizes of arrays: N nodes, K generations, T accounts (all accounts of the ticket tree), J jobs, P picked gangs. Times are
in seconds, amounts of GPU time in GPU-seconds. NaN means "not measured".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes and GPUs of a cluster."""

    generations: tuple[str, ...]  # K names
    node_generation: Ints  # (N,) index of the node's generation
    capacity: Ints  # (N,) GPUs that may be given out now; 0 on drained and down nodes
    installed: Ints  # (N,) GPUs of the node, also while it is drained or down
    # (N,) nodes on which only the gangs that already run there may use GPUs; None: no node
    closed: Bools | None = None
    # (K,) relative speed of each generation as the operator publishes it; None: not published
    table: Floats | None = None
    # (N,) number of the machine that each node belongs to. A machine whose GPUs are sliced has a node for each kind of
    # slice. None: each node is a machine.
    machine: Ints | None = None


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of the ticket tree: organisations, departments, teams, and users as its leaves. Parents come before
    children."""

    parent: Ints  # (T,) index of the parent; NOWHERE for a root
    tickets: Floats  # (T,) weight among siblings, > 0
    trades: Bools  # (T,) whether the account (a team) trades, unless an account below it trades
    owed: Floats  # (T, K) GPU-seconds entitled minus received so far; 0 except for leaves
    cap: Floats  # (T, K) limit of GPUs of a generation at once; inf when unlimited
    cap_total: Floats  # (T,) limit of GPUs at once
    # Limits on trades across an account's border; None if no account has such a limit.
    deals: Bools | None = None  # (T, K) whether the account trades a generation at all
    give_most: Floats | None = None  # (T, K) limit of GPUs given away at once; inf when unlimited
    # (T, K) limit of GPUs given away at once, as a fraction of the entitlement; inf when unlimited
    give_part: Floats | None = None
    # GPUs that the limits still allow in this round, which is less than `cap` when GPU-hours are nearly spent; None:
    # all of `cap`.
    room: Floats | None = None  # (T, K) GPUs
    room_total: Floats | None = None  # (T,)
    # GPUs up to which an account takes part in the sharing; beyond them its jobs only get GPUs left over. None: none.
    claim: Floats | None = None  # (T, K)
    claim_total: Floats | None = None  # (T,)
    borrow: Floats | None = None  # (T, K) GPUs beyond the entitlement, as a fraction of it; None: any number
    # Limits like `cap_total`, `room_total` and `claim_total` on the total cost of an account's GPUs of all generations;
    # infinite where the cost is not limited.
    price: Floats | None = None  # (K,) of one GPU
    cap_cost: Floats | None = None  # (T,) limit of the cost at once
    room_cost: Floats | None = None  # (T,) cost that the limits still allow in this round
    claim_cost: Floats | None = None  # (T,) cost up to which an account takes part in the sharing
    # Whether jobs of equal priority take turns by the GPU time that each job has had, instead of running one after
    # another. None: for no account.
    evenly: Bools | None = None  # (T,)


@dataclass(frozen=True, slots=True)
class Jobs:
    """The gangs that run or wait, in the order in which their owners want them."""

    account: Ints  # (J,) the leaf account that pays
    workers: Ints  # (J,) workers (processes) of the gang; of a waiting elastic gang the least
    gpus: Ints  # (J,) GPUs of one worker, all on one node
    accepts: Bools  # (J, K) generations that the job may use
    rate: Floats  # (J, K) measured steps per second of the whole gang; NaN where unknown
    priority: Ints  # (J,) higher goes first within its account
    running_on: Ints  # (J,) generation of the GPUs that the job holds; NOWHERE while it waits
    resident: Floats  # (J,) seconds since the gang got these GPUs
    blocked: Ints  # (J,) the Reason why the job may not run in this round, or 0
    place_start: Ints  # (J + 1,) start of each job's slice of place_node
    place_node: Ints  # node of each worker; for a waiting job the nodes where it ran last, which it prefers
    # Preemptible jobs: they take no part in the sharing and run only on GPUs left over. None: no job.
    preemptible: Bools | None = None  # (J,)
    # Services and sessions, which are not preempted while their account is within its guarantee. None: no job.
    keeps: Bools | None = None  # (J,)
    # Services and sessions that may not be preempted yet, because their notice has not been given or is not over. None:
    # no job.
    unwarned: Bools | None = None  # (J,)
    # GPU-seconds that each job has had so far: for all jobs if the policy needs them, else only for accounts whose jobs
    # share evenly. None: not known.
    attained: Floats | None = None  # (J, K)
    # Number of the model that each job trains or serves; jobs of the same model have the same number. NOWHERE if the
    # owner names no model. None: no job names a model.
    model: Ints | None = None  # (J,)
    submitted: Floats | None = None  # (J,) submit time on the view's clock; None: not known
    # (J,) seconds that the owner expects the job to hold GPUs in total, NaN where unknown. None: unknown for all jobs.
    expected: Floats | None = None
    # (J,) deadline on the view's clock, infinite for jobs without a deadline. None: no job has a deadline.
    deadline: Floats | None = None
    # The least and the most workers of elastic gangs, and `workers` for others. A policy sees each elastic gang with
    # its least workers, unless the gang must not be stopped yet (fairshare.sizes). None: no gang is elastic.
    least: Ints | None = None  # (J,)
    most: Ints | None = None  # (J,)
    # (J,) when a service or session ends at the latest if it starts now, on the view's clock; infinite where no limit
    # ends it. Only known for a view with advance reservations. None: not known.
    until: Floats | None = None

    def sharing(self, able: Bools) -> Bools:
        """Returns `able` with False for preemptible jobs, because they do not count when GPUs are shared by tickets.

        `able` (J, K): whether each job may run on each generation.
        """
        return able if self.preemptible is None else able & ~self.preemptible[:, None]

    def on_any(self, nodes: Bools | None) -> Bools:
        """Returns which gangs have a worker on one of the marked nodes, as a mask (J,).

        `nodes`: a mask (N,), or None if no node is marked. For waiting gangs, the nodes where they ran last count.
        """
        found = np.zeros(len(self), dtype=bool)
        if nodes is not None:
            gang = np.repeat(np.arange(len(self)), np.diff(self.place_start))
            found[gang[nodes[self.place_node]]] = True
        return found

    def __len__(self) -> int:
        return len(self.account)


def known(values: Sequence[float | None], without: float) -> Floats | None:
    """Returns the values as an array (J,), with `without` in place of each None. Returns None if all values are
    None."""
    if all(value is None for value in values):
        return None
    return np.array([without if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Advance:
    """The GPUs of advance reservations: a row for each node of each window that is open or comes soon (R rows)."""

    node: Ints  # (R,)
    gpus: Ints  # (R,) GPUs of the node
    account: Ints  # (R,) the account whose jobs have these GPUs, with all accounts below it; NOWHERE: it has no jobs
    opens: Floats  # (R,) when the window begins, on the view's clock
    closes: Floats  # (R,) when the window ends
    held: Floats  # (R,) from when on no other gang may hold the GPUs, so that they are free when the window begins
    lends: Bools  # (R,) whether others may use what the account leaves


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the scheduler for one round."""

    quantum: float = 60.0
    ordering: Literal["stride", "lottery"] = "stride"
    trading: bool = True
    pricing: Literal["between", "second_price"] = "between"
    least_gain: float = 1.05  # lowest ratio of the two sides' speed-ups at which they trade
    min_hold: float = 0.0  # seconds that a gang keeps the GPUs that it got
    switch_cost: float = 0.0  # seconds of GPU time that a stop and a resume lose
    memory: float = 3600.0  # seconds of entitlement up to which a debt is remembered
    may_preempt: bool = True  # False: only fill free GPUs
    # True: take back only surplus for guarantees, and preempt nothing within a guarantee
    reclaim: bool = False

    @property
    def is_quantum(self) -> bool:
        """Returns whether this is a regular round at the end of a quantum, which may preempt any gang.

        Returns False for additional rounds between two quanta.
        """
        return self.may_preempt and not self.reclaim


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of a policy (its view): everything that a decision depends on, except the seed and the policy's state.

    Entitlements can be computed from it: see `fairshare.entitlement.entitlements`.
    """

    cluster: Cluster
    accounts: Accounts
    jobs: Jobs
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0  # seconds on a clock that all views of a cluster share
    advance: Advance | None = None  # None: no advance reservation is open or comes soon


class Reason(IntEnum):
    """Why a job does not run. A reason that begins with NEVER_ persists until the hardware or a limit changes."""

    NONE = 0
    NEVER_NO_SUCH_GENERATION = 1  # no node of an accepted generation exists
    NEVER_TOO_LARGE = 2  # larger than all nodes of any single accepted generation together
    NEVER_WORKER_TOO_LARGE = 3  # no node has as many GPUs as one worker needs
    NEVER_OVER_QUOTA = 4  # larger than what the tenant may hold at once
    QUOTA_IN_USE = 10  # the account's limits of GPUs at once are reached
    HOURS_SPENT = 11  # the account's GPU-hours or money of the period are spent
    SHARE_IN_USE = 12  # the account has its share now; others are owed more
    OWN_JOBS_AHEAD = 13  # other jobs of the account go first
    FRAGMENTED = 14  # enough GPUs are free, but not together on nodes as the gang needs them
    NODES_AWAY = 15  # it would fit if drained or down nodes came back
    GPUS_DRAINING = 16  # picked; waits until the gangs that hold its GPUs have left
    CLUSTER_PAUSED = 17
    BACKING_OFF = 18  # a start failed and will be tried again later
    BORROWED_ENOUGH = 19  # the account has its entitlement and may not borrow more
    PREEMPTIBLE = 20  # runs only on GPUs left over: it is preemptible, or its account is beyond a limit
    TEAM_ARCHIVED = 21  # the account's team is archived
    PLACE_LOST = 22  # picked, but its GPUs were gone when the decision was carried out
    OWNER_MAY_NOT = 23  # its owner may not submit jobs in the team any more
    RETRYING = 24  # its program failed and will be started again later
    RESERVED = 25  # the GPUs that it could have are held by an advance reservation

    @property
    def is_never(self) -> bool:
        return 0 < self < Reason.QUOTA_IN_USE


class Trade(NamedTuple):
    """One trade of a round: `seller` gives `fast_gpus` GPUs of generation `fast` to `buyer` for `slow_gpus` of
    generation `slow`.

    The price is the number of slow GPUs for one fast GPU. Both sides gain if seller_speedup < price < buyer_speedup.
    """

    seller: int
    buyer: int
    slow: int
    fast: int
    fast_gpus: float
    slow_gpus: float
    price: float
    seller_speedup: float
    buyer_speedup: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's decision (its plan): which gangs run on which nodes until the next round, and why all other jobs
    wait."""

    run: Ints  # (P,) picked jobs
    generation: Ints  # (P,)
    place_start: Ints  # (P + 1,)
    place_node: Ints  # node of each worker, by rank
    reason: Ints  # (J,) a Reason; 0 for picked jobs
    share: Floats  # (T, K) GPUs after surplus was lent and trades were made
    trades: tuple[Trade, ...]
    # Picked jobs that run only on GPUs left over; None: no such jobs.
    preemptible: Ints | None = None
    # (T, K) GPUs of `share` that jobs beyond their guarantees cannot take away; None: the policy guarantees none
    guaranteed: Floats | None = None
    # (T, K) entitlement by the policy's own rules, as in early versions; None: the `entitlements` of the view.
    entitled: Floats | None = None
    # Seconds until the policy wants the next round even if nothing happens; None: when the quantum ends.
    ask_again: float | None = None
    # Message for operators: which promise the policy could not keep in this plan, and what the policy did instead.
    remark: str | None = None

    def gpus(self, jobs: Jobs) -> Ints:
        """Returns the GPUs that each picked gang gets, as an array (P,)."""
        gpus: Ints = np.diff(self.place_start) * jobs.gpus[self.run]
        return gpus
