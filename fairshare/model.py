"""Defines what a policy reads and what it returns: arrays, held by frozen dataclasses.

Sizes: N nodes, K generations, T accounts (nodes of the ticket tree), J jobs, P picked gangs. Times are in seconds;
amounts of GPU time are in GPU-seconds. NaN means "not measured".
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
    installed: Ints  # (N,) GPUs of the node, also when it is drained or down
    # (N,) nodes whose capacity only the gangs that run there may use; None: no node
    closed: Bools | None = None
    # (K,) relative speed of each generation as the operator publishes it; None: not published
    table: Floats | None = None
    # (N,) number of the machine of each node: a machine has several nodes where its GPUs are sliced, one for each kind
    # of slice. None: each node is a machine.
    machine: Ints | None = None


@dataclass(frozen=True, slots=True)
class Accounts:
    """The ticket tree: organisations, departments, teams, and users as its leaves. Parents come before children."""

    parent: Ints  # (T,) index of the parent; NOWHERE for a root
    tickets: Floats  # (T,) weight among siblings, > 0
    trades: Bools  # (T,) whether this account (a team) trades, unless an account below it does
    owed: Floats  # (T, K) GPU-seconds entitled minus received so far; 0 except for leaves
    cap: Floats  # (T, K) limit of GPUs of a generation at once; inf when unlimited
    cap_total: Floats  # (T,) limit of GPUs at once
    # Limits on trades that cross an account's border; None where no account has any.
    deals: Bools | None = None  # (T, K) whether the account trades a generation at all
    give_most: Floats | None = None  # (T, K) limit of GPUs given away at once; inf when unlimited
    # (T, K) the same limit as a fraction of the entitlement; inf when unlimited
    give_part: Floats | None = None
    # What the limits leave of the caps in this round, for example when GPU-hours are nearly spent; None: everything.
    room: Floats | None = None  # (T, K) GPUs
    room_total: Floats | None = None  # (T,)
    # GPUs up to which an account takes part in the sharing; beyond them it gets only idle GPUs. None: no bound.
    claim: Floats | None = None  # (T, K)
    claim_total: Floats | None = None  # (T,)
    borrow: Floats | None = None  # (T, K) GPUs beyond the entitlement, as a fraction of it; None: any number
    # The same limits on the total cost of an account's GPUs, of all generations; infinite where it is not limited.
    price: Floats | None = None  # (K,) of one GPU
    cap_cost: Floats | None = None  # (T,)
    room_cost: Floats | None = None  # (T,)
    claim_cost: Floats | None = None  # (T,)
    # Accounts whose jobs of equal priority take turns by the GPU time that each has had, instead of running one after
    # another. None: no account.
    evenly: Bools | None = None  # (T,)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Gangs that run or wait, in the order that their owner wants."""

    account: Ints  # (J,) the leaf account that pays
    workers: Ints  # (J,) workers (processes) of the gang
    gpus: Ints  # (J,) GPUs of one worker, all on one node
    accepts: Bools  # (J, K) generations that the job may use
    rate: Floats  # (J, K) measured steps per second of the whole gang; NaN where unknown
    priority: Ints  # (J,) higher goes first within its account
    running_on: Ints  # (J,) generation of the GPUs that it holds; NOWHERE when it waits
    resident: Floats  # (J,) seconds since the gang got these GPUs
    blocked: Ints  # (J,) the Reason that forbids it to run in this round, or 0
    place_start: Ints  # (J + 1,) start of each job's slice of place_node
    place_node: Ints  # node of each worker now, or where it ran last, which is only a preference
    # Preemptible jobs: they take no part in the sharing and run only on idle GPUs. None: no job.
    preemptible: Bools | None = None  # (J,)
    # Services and sessions, which keep the GPUs that they got while their account is within its guarantee. None: no
    # job.
    keeps: Bools | None = None  # (J,)
    # The services and sessions that may not be preempted yet, because their notice is not over or not given. None: no
    # job.
    unwarned: Bools | None = None  # (J,)
    # GPU-seconds that each job has had so far: of all jobs if the policy needs it, else of accounts whose jobs share
    # evenly. None: not known.
    attained: Floats | None = None  # (J, K)
    # Model that each job runs, as a number that jobs of one model share; NOWHERE where the owner names none. None: no
    # job.
    model: Ints | None = None  # (J,)
    submitted: Floats | None = None  # (J,) submit time on the view's clock; None: not known
    # (J,) seconds that the owner expects the job to hold GPUs in total, NaN where unknown. None: unknown for all jobs.
    expected: Floats | None = None
    # (J,) deadline on the view's clock, infinite for jobs without one. None: no job has one.
    deadline: Floats | None = None

    def sharing(self, able: Bools) -> Bools:
        """Returns `able` (J, K), where jobs may run, without preemptible jobs, which take no part in the sharing."""
        return able if self.preemptible is None else able & ~self.preemptible[:, None]

    def on_any(self, nodes: Bools | None) -> Bools:
        """Returns (J,) the gangs with a worker on a node marked in `nodes` (N,), now or where they ran last."""
        found = np.zeros(len(self), dtype=bool)
        if nodes is not None:
            gang = np.repeat(np.arange(len(self)), np.diff(self.place_start))
            found[gang[nodes[self.place_node]]] = True
        return found

    def __len__(self) -> int:
        return len(self.account)


def known(values: Sequence[float | None], without: float) -> Floats | None:
    """Returns (J,) the known values, with `without` in place of unknown ones; None where no value is known."""
    if all(value is None for value in values):
        return None
    return np.array([without if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the scheduler."""

    quantum: float = 60.0
    ordering: Literal["stride", "lottery"] = "stride"
    trading: bool = True
    pricing: Literal["between", "second_price"] = "between"
    least_gain: float = 1.05  # ratio of speed-ups below which a trade is not worth its noise
    min_hold: float = 0.0  # seconds that a gang keeps the GPUs that it got
    switch_cost: float = 0.0  # seconds of GPU time that a stop and a resume lose
    memory: float = 3600.0  # seconds of entitlement up to which a debt is remembered
    may_preempt: bool = True  # False: only fill free GPUs
    # True: take back only surplus for guarantees, and preempt nothing within a guarantee
    reclaim: bool = False

    @property
    def is_quantum(self) -> bool:
        """Whether this round ends a quantum, so that any gang may be preempted, or is a round between two quanta."""
        return self.may_preempt and not self.reclaim


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on, except the seed and the policy's state.

    Entitlements are a function of it: `fairshare.entitlement.entitlements`.
    """

    cluster: Cluster
    accounts: Accounts
    jobs: Jobs
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0  # seconds on a clock that all views of a cluster share


class Reason(IntEnum):
    """Why a job does not run. NEVER_… lasts until the hardware or a limit changes."""

    NONE = 0
    NEVER_NO_SUCH_GENERATION = 1  # no node of an accepted generation exists
    NEVER_TOO_LARGE = 2  # larger than all nodes of any one accepted generation together
    NEVER_WORKER_TOO_LARGE = 3  # no node has as many GPUs as one worker needs
    NEVER_OVER_QUOTA = 4  # larger than what the tenant may hold at once
    QUOTA_IN_USE = 10  # the account's limits of GPUs at once are reached
    HOURS_SPENT = 11  # the account's GPU-hours or money of the period are spent
    SHARE_IN_USE = 12  # the account has its share now; others are owed more
    OWN_JOBS_AHEAD = 13  # other jobs of the account go first
    FRAGMENTED = 14  # enough GPUs are free, but not together on nodes as the gang needs them
    NODES_AWAY = 15  # would fit if drained or down nodes came back
    GPUS_DRAINING = 16  # picked; waits until the gangs that hold its GPUs have left
    CLUSTER_PAUSED = 17
    BACKING_OFF = 18  # a start failed and will be tried again later
    BORROWED_ENOUGH = 19  # the account has its entitlement and may not borrow more
    PREEMPTIBLE = 20  # runs only on idle GPUs, because it is preemptible or its account is beyond a limit
    TEAM_ARCHIVED = 21  # the account's team is archived
    PLACE_LOST = 22  # picked, but its GPUs were gone when the decision was carried out
    OWNER_MAY_NOT = 23  # its owner may not submit jobs in the team any more

    @property
    def is_never(self) -> bool:
        return 0 < self < Reason.QUOTA_IN_USE


class Trade(NamedTuple):
    """A trade of one round: `seller` gives `fast_gpus` of `fast` for `slow_gpus` of `slow` from `buyer`.

    `price` is slow_gpus / fast_gpus. Both sides gain when seller_speedup < price < buyer_speedup.
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
    """A policy's answer (the plan): which gangs run where until the next round, and why the others wait."""

    run: Ints  # (P,) picked jobs
    generation: Ints  # (P,)
    place_start: Ints  # (P + 1,)
    place_node: Ints  # node of each worker, by rank
    reason: Ints  # (J,) a Reason; 0 for picked jobs
    share: Floats  # (T, K) GPUs after surplus was lent and trades were made
    trades: tuple[Trade, ...]
    # Picked jobs that run only on idle GPUs; None: no picked job.
    preemptible: Ints | None = None
    # (T, K) GPUs of `share` that cannot be taken away; None: the policy guarantees none
    guaranteed: Floats | None = None
    # (T, K) entitlement by the policy's own rules, which early versions had; None: `entitlements` of the view.
    entitled: Floats | None = None
    # Seconds until the policy wants the next round even if nothing happens; None: when the quantum ends.
    ask_again: float | None = None
    # Message for operators: which promise the policy could not keep in this plan, and what it did instead.
    remark: str | None = None
