"""What a policy sees and what it answers: arrays at the core, frozen dataclasses around them.

Sizes: N nodes, K generations, T accounts (nodes of the ticket tree), J jobs, P picked gangs.
Times are seconds; amounts of GPU time are GPU-seconds. NaN stands for "not measured".
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
    """The hardware. `capacity` counts only GPUs that may be given out now."""

    generations: tuple[str, ...]  # K names
    node_generation: Ints  # (N,) index of a generation
    capacity: Ints  # (N,) GPUs that may be given out; 0 when drained or down
    installed: Ints  # (N,) GPUs that are there, drained and down ones too
    closed: Bools | None = None  # (N,) whose capacity is for the gangs that run there alone; None: no node
    # (K,) how fast generations are by what the operator publishes; None: not said
    table: Floats | None = None
    # (N,) a number for each machine, where some are several nodes, one for each kind of slices; None: each is a node.
    machine: Ints | None = None


@dataclass(frozen=True, slots=True)
class Accounts:
    """The ticket tree: organisations, departments, teams, and users as leaves; parents come first."""

    parent: Ints  # (T,) index of the parent; NOWHERE for a root
    tickets: Floats  # (T,) weight among the siblings, > 0
    trades: Bools  # (T,) whether this account (a team) is a party to trades, unless one below it is
    owed: Floats  # (T, K) GPU-seconds entitled minus received so far, of leaves; others 0
    cap: Floats  # (T, K) most GPUs of a generation at once; inf when unlimited
    cap_total: Floats  # (T,) most GPUs at once
    # Limits of trades that cross an account's border; None where nobody has any.
    deals: Bools | None = None  # (T, K) whether a generation is traded at all
    give_most: Floats | None = None  # (T, K) most GPUs given away at once; inf when unlimited
    give_part: Floats | None = None  # (T, K) the same as a part of what tickets earn; inf when unlimited
    # What limits leave of the caps for this round, as hours that are nearly spent do; None: all.
    room: Floats | None = None  # (T, K) GPUs
    room_total: Floats | None = None  # (T,)
    # Up to how many GPUs it takes part in the sharing; beyond, it only gets what nobody else wants. None: all.
    claim: Floats | None = None  # (T, K)
    claim_total: Floats | None = None  # (T,)
    borrow: Floats | None = None  # (T, K) most GPUs beyond the entitlement, as a part of it; None: any number
    # The same for what all its GPUs cost together, whichever they are; infinite where an account is not limited.
    price: Floats | None = None  # (K,) of one GPU
    cap_cost: Floats | None = None  # (T,)
    room_cost: Floats | None = None  # (T,)
    claim_cost: Floats | None = None  # (T,)
    # Whose jobs of one priority take turns by the time that each has had, instead of one after another. None: nobody's.
    evenly: Bools | None = None  # (T,)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Gangs that run or wait, in the order in which their owner wants them."""

    account: Ints  # (J,) the leaf that pays
    workers: Ints  # (J,) gang size in processes
    gpus: Ints  # (J,) GPUs of one worker, all on one node
    accepts: Bools  # (J, K) generations that the job may use
    rate: Floats  # (J, K) measured progress in steps per second of the whole gang; NaN unknown
    priority: Ints  # (J,) higher goes first within its account
    running_on: Ints  # (J,) generation where it holds GPUs now; NOWHERE when it waits
    resident: Floats  # (J,) seconds since it got these GPUs
    blocked: Ints  # (J,) a Reason that forbids it this round, or 0
    place_start: Ints  # (J + 1,) where each job's slice of place_node begins
    place_node: Ints  # node of each worker that runs now, or ran last (a preference only)
    # Who takes no part in the sharing, and runs only on GPUs that nobody else wants; None: no job.
    preemptible: Bools | None = None  # (J,)
    # Services and sessions, which keep the GPUs they got while their account is within its guarantee; None: no job.
    keeps: Bools | None = None  # (J,)
    # Those of them that nobody's claim stops yet: their notice is not over, or was not given; None: no job.
    unwarned: Bools | None = None  # (J,)
    # GPU-seconds that each job has had so far, of all jobs for a policy that needs it, else of those of accounts whose
    # jobs share evenly; None: not known.
    attained: Floats | None = None  # (J, K)
    # What each job runs, by a number that jobs of one model share: NOWHERE where its owner names none; None: no job.
    model: Ints | None = None  # (J,)
    submitted: Floats | None = None  # (J,) when each was, on the clock of the view; None: not known
    # (J,) seconds for which owners expect their jobs to hold GPUs in all, NaN where nobody knows; None: of no job.
    expected: Floats | None = None
    # (J,) on the clock of the view, infinite without one; None: no job has one
    deadline: Floats | None = None

    def sharing(self, able: Bools) -> Bools:
        """`able` (J, K), where jobs may run, of those alone that take part in the sharing."""
        return able if self.preemptible is None else able & ~self.preemptible[:, None]

    def on_any(self, nodes: Bools | None) -> Bools:
        """(J,) the gangs with a worker on one of the nodes marked in `nodes` (N,), where they run or ran last."""
        found = np.zeros(len(self), dtype=bool)
        if nodes is not None:
            gang = np.repeat(np.arange(len(self)), np.diff(self.place_start))
            found[gang[nodes[self.place_node]]] = True
        return found

    def __len__(self) -> int:
        return len(self.account)


def known(values: Sequence[float | None], without: float) -> Floats | None:
    """(J,) what is known of jobs, and `without` where nothing is; None where nothing is known of any."""
    if all(value is None for value in values):
        return None
    return np.array([without if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decide."""

    quantum: float = 60.0
    ordering: Literal["stride", "lottery"] = "stride"
    trading: bool = True
    pricing: Literal["between", "second_price"] = "between"
    least_gain: float = 1.05  # ratio of speed-ups under which a trade is not worth its noise
    min_hold: float = 0.0  # seconds for which a gang keeps the GPUs it got
    switch_cost: float = 0.0  # seconds of GPU time lost by a stop and a resume
    memory: float = 3600.0  # seconds of entitlement up to which a debt is remembered
    may_preempt: bool = True  # False: only fill free GPUs
    reclaim: bool = (
        False  # True: nobody within a guarantee is stopped; only surplus is taken back for guarantees
    )

    @property
    def is_quantum(self) -> bool:
        """Whether a quantum is over, so that turns may end; else this is a round between two."""
        return self.may_preempt and not self.reclaim


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on, besides the seed and what the policy remembers.

    What tickets earn is a function of it: `fairshare.entitlement.entitlements`.
    """

    cluster: Cluster
    accounts: Accounts
    jobs: Jobs
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0  # seconds on a clock that all views of a cluster share


class Reason(IntEnum):
    """Why a job does not run. NEVER_… cannot change without a change of hardware or quota."""

    NONE = 0
    NEVER_NO_SUCH_GENERATION = 1  # no node of an accepted generation exists
    NEVER_TOO_LARGE = 2  # larger than all nodes of any accepted generation together
    NEVER_WORKER_TOO_LARGE = 3  # no node has as many GPUs as one worker wants
    NEVER_OVER_QUOTA = 4  # larger than what the tenant may hold at once
    QUOTA_IN_USE = 10  # what the account's limits allow at once is in use
    HOURS_SPENT = 11  # the account's GPU-hours or money of a period are spent
    SHARE_IN_USE = 12  # others are owed more; the account has its share now
    OWN_JOBS_AHEAD = 13  # the account's own other jobs go first
    FRAGMENTED = 14  # enough GPUs, but not together on nodes as the gang needs them
    NODES_AWAY = 15  # would fit if drained or down nodes were back
    GPUS_DRAINING = 16  # picked; waits until the present holders have left
    CLUSTER_PAUSED = 17
    BACKING_OFF = 18  # a start failed; tried again later
    BORROWED_ENOUGH = 19  # the account has its entitlement, and may not borrow more
    PREEMPTIBLE = 20  # by its own wish or beyond a limit it runs only on GPUs that nobody else wants
    TEAM_ARCHIVED = 21  # the account is of a team that takes no part any more, unless it is restored
    PLACE_LOST = 22  # picked, but GPUs that the decision gave it could not be had when it was carried out
    OWNER_MAY_NOT = 23  # its owner may not submit jobs in the team any more

    @property
    def is_never(self) -> bool:
        return 0 < self < Reason.QUOTA_IN_USE


class Trade(NamedTuple):
    """For this round `seller` gives `fast_gpus` of `fast` for `slow_gpus` of `slow` of `buyer`.

    `price` is slow_gpus / fast_gpus; each side gains when seller_speedup < price < buyer_speedup.
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
    """The answer: who runs where until the next round, and why the others do not."""

    run: Ints  # (P,) picked jobs
    generation: Ints  # (P,)
    place_start: Ints  # (P + 1,)
    place_node: Ints  # node of each worker, rank by rank
    reason: Ints  # (J,) a Reason, 0 for the picked
    share: Floats  # (T, K) GPUs after surplus was passed on and trades were made
    trades: tuple[Trade, ...]
    # Which of the picked jobs run only because nobody else wants their GPUs; None where all take part with all.
    preemptible: Ints | None = None
    guaranteed: Floats | None = (
        None  # (T, K) GPUs of `share` that nobody may take away; None: the policy names none
    )
    # (T, K) GPUs that tickets earn by rules of the policy's own, as early ones had; None: `entitlements` of the view.
    entitled: Floats | None = None
    # Seconds until the policy wants to be asked though nothing happens; None: when the quantum is over.
    ask_again: float | None = None
    # What operators should know of this plan: where the policy could not do as it promises, and what it did instead.
    remark: str | None = None
