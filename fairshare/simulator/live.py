"""Uses the live scheduler in a simulation: the same driver and policies that decide the rounds of a real cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairshare.driver import Situation, between_quanta, happened
from fairshare.model import NOWHERE, Accounts, Cluster, Decision, Floats, Jobs, Settings, Snapshot, known
from fairshare.policies import policy_of
from fairshare.policies.base import Need, Policy
from fairshare.policies.base import State as PolicyState
from fairshare.simulator.model import Machines, Placement, SimJob, State


@dataclass(frozen=True, slots=True)
class Tickets:
    """The ticket tree of a simulation, parents first.

    It has each account's parent (NOWHERE for a root), its tickets, and whether it trades.
    """

    parent: tuple[int, ...]
    tickets: tuple[float, ...]
    trades: tuple[bool, ...]


class LiveScheduler:
    """A scheduler for simulations that decides in rounds, as on a real cluster.

    Rounds at the end of a quantum may preempt. Rounds in between only fill free GPUs or, if the policy can, take back
    surplus. The speeds of all jobs are known from the start.
    """

    def __init__(
        self,
        machines: Machines,
        tickets: Tickets,
        settings: Settings,
        *,
        seed: int = 0,
        policy: Policy | None = None,
        asks_idly: bool = True,
    ) -> None:
        """Creates the scheduler. Without `policy`, it uses the default policy with the options in the settings.

        If `asks_idly` is false, rounds at the end of quanta are skipped while they are not expected to change a time,
        which is faster. The rounds that take place are at the same times and have the same seeds as without skipping.
        """
        self._settings, self._seed, self._policy = settings, seed, policy or policy_of(settings)
        shape = (len(tickets.parent), machines.generations)
        self._accounts = Accounts(
            parent=np.array(tickets.parent, dtype=np.int64),
            tickets=np.array(tickets.tickets, dtype=np.float64),
            trades=np.array(tickets.trades, dtype=np.bool_),
            owed=np.zeros(shape),
            cap=np.full(shape, np.inf),
            cap_total=np.full(shape[0], np.inf),
        )
        self._last_plan: Decision | None = None
        self._last_situation: Situation | None = None
        self._state: PolicyState | None = None
        # The active jobs and those of their properties that do not change, cached while the same jobs are active.
        self._known: tuple[list[int], Jobs] | None = None
        self._held: dict[int, Placement] = {}  # gangs that run since the last decision, with their places
        self._since: dict[int, float] = {}  # when each running job got its GPUs
        self._last_place: dict[int, Placement] = {}
        # GPU-seconds of each job by generation; None unless the policy needs them.
        self._attained: dict[int, Floats] | None = {} if Need.ATTAINED in self._policy.needs else None
        self._last, self._last_quantum = 0.0, -np.inf
        self._asks_idly, self._skips = asks_idly, False
        self._asked = 0  # number of decisions, which gives each round its own seed
        self._use(machines)

    def situation(self) -> Situation:
        """Returns the situation directly after the last decision, in which its gangs hold their GPUs. Its jobs are the
        active jobs, in the order of `State.active`.

        Raises ValueError before the first decision.
        """
        if self._last_situation is None or self._last_plan is None:
            raise ValueError("nothing has been decided yet")
        return self._last_situation.after(self._last_plan, 0.0)

    def _use(self, machines: Machines) -> None:
        generations = tuple(str(k) for k in range(machines.generations))
        capacity = np.array(machines.node_gpus, dtype=np.int64)
        kinds = np.array(machines.node_generation, dtype=np.int64)
        self._machines, self._cluster = machines, Cluster(generations, kinds, capacity, capacity)
        self._known = None

    def decide(self, state: State) -> Mapping[int, Placement]:
        if state.machines is not self._machines:
            self._use(state.machines)
        active = list(state.active)
        # One by one, so that the sums are rounded as if these rounds had taken place.
        while self._skips and self._last_quantum + self._settings.quantum < state.now:
            self._last_quantum += self._settings.quantum
            self._asked += 1
        # Repeats the sum that `ask_again` computes: a difference could be rounded below the quantum, and so never reach
        # it.
        is_quantum = state.now >= self._last_quantum + self._settings.quantum
        if is_quantum:
            self._last_quantum = state.now
        running = state.running
        self._count(state)
        view = self._view(state, active, running, is_quantum=is_quantum)
        now = self._last_situation = Situation(self._policy, view, self._remembered(state, view))
        plan = self._last_plan = now.decide(self._seed + self._asked)
        self._asked += 1
        places = {}
        for p, job in enumerate(plan.run.tolist()):
            nodes = plan.place_node[plan.place_start[p] : plan.place_start[p + 1]]
            places[active[job]] = Placement(int(plan.generation[p]), tuple(nodes.tolist()))
        self._remember(state.now, running, places)
        changed = not is_quantum or places != running
        self._skips = not self._asks_idly and bool(places) and self._is_lasting(view, plan, changed=changed)
        return places

    def _is_lasting(self, view: Snapshot, plan: Decision, *, changed: bool) -> bool:
        """Returns whether rounds would change no time until the next event.

        This is so if all jobs run as fast as they can. It is also so if a round at the end of a quantum changed nothing
        although all gangs may be stopped, as long as the passing time gives no other job a turn: all jobs run, or all
        belong to one account, there is one generation, and the account's order does not depend on what jobs received.
        """
        if plan.ask_again is not None:
            return False
        jobs, all_run = view.jobs, len(plan.run) == len(view.jobs)
        fastest = np.where(jobs.accepts, jobs.rate, 0.0).max(axis=1)
        if all_run and bool((jobs.rate[plan.run, plan.generation] >= fastest[plan.run]).all()):
            return True
        may_stop = (jobs.running_on == NOWHERE) | (jobs.resident >= self._settings.min_hold)
        alone = (
            self._attained is None and len(np.unique(jobs.account)) == 1 and self._machines.generations == 1
        )
        return not changed and bool(may_stop.all()) and (all_run or alone)

    def ask_again(self, state: State) -> float | None:
        """Returns the time of the next round: the end of the quantum, or an earlier time that the policy asked for.

        Returns None if no round is needed before the next event.
        """
        if not state.active:
            return None
        plan, moments = self._last_plan, []
        if plan is not None and plan.ask_again is not None:
            moments.append(self._last + plan.ask_again)
        if not self._skips:
            moments.append(self._last_quantum + self._settings.quantum)
        return max(min(moments), state.now) if moments else None

    def _view(
        self, state: State, active: list[int], running: Mapping[int, Placement], *, is_quantum: bool
    ) -> Snapshot:
        settings = self._settings if is_quantum else between_quanta(self._policy, self._settings)
        if self._known is None or self._known[0] != active:
            self._known = active, self._jobs(state, active)
        jobs = self._placed(self._known[1], state, active, running)
        return Snapshot(self._cluster, self._accounts, jobs, settings, state.now)

    def _remembered(self, state: State, view: Snapshot) -> PolicyState:
        """Reports to the policy the GPU time that accounts received since the last decision. Returns the policy's new
        state."""
        if self._state is None:
            self._state = self._policy.start(view)
        lasted = state.now - self._last
        if lasted > 0 and self._last_plan is not None:
            received = np.zeros_like(self._accounts.owed)
            for job, place in self._held.items():
                received[state.jobs[job].account, place.generation] += state.jobs[job].gpus * lasted
            self._state = self._policy.observe(self._state, happened(self._last_plan, received, lasted), view)
        self._last = state.now
        return self._state

    def _count(self, state: State) -> None:
        """Adds to `_attained` the GPU-seconds that each job has received since the last decision."""
        if self._attained is None:
            return
        for job, place in self._held.items():
            had = self._attained.setdefault(job, np.zeros(state.machines.generations))
            had[place.generation] += state.jobs[job].gpus * (state.now - self._last)

    def _remember(self, now: float, before: Mapping[int, Placement], places: Mapping[int, Placement]) -> None:
        for job, place in places.items():
            if before.get(job) != place:
                self._since[job] = now
        self._held = dict(places)
        self._last_place |= places

    @staticmethod
    def _jobs(state: State, active: Sequence[int]) -> Jobs:
        """Returns the job arrays of a snapshot for the active jobs, as if all of them waited and none had run
        before."""
        jobs: list[SimJob] = [state.jobs[job] for job in active]
        speeds = np.array([job.speeds for job in jobs], dtype=np.float64).reshape(
            len(jobs), state.machines.generations
        )
        return Jobs(
            account=np.array([job.account for job in jobs], dtype=np.int64),
            workers=np.array([job.workers for job in jobs], dtype=np.int64),
            gpus=np.array([job.gpus_per_worker for job in jobs], dtype=np.int64),
            accepts=speeds > 0,
            rate=np.where(speeds > 0, speeds, np.nan),
            priority=np.array([job.priority for job in jobs], dtype=np.int64),
            running_on=np.full(len(jobs), NOWHERE, dtype=np.int64),
            resident=np.zeros(len(jobs)),
            blocked=np.zeros(len(jobs), dtype=np.int64),
            place_start=np.zeros(len(jobs) + 1, dtype=np.int64),
            place_node=np.empty(0, dtype=np.int64),
            submitted=np.array([job.arrival for job in jobs]),
            expected=known([job.expected for job in jobs], np.nan),
            deadline=known([job.deadline for job in jobs], np.inf),
        )

    def _placed(
        self, jobs: Jobs, state: State, active: Sequence[int], running: Mapping[int, Placement]
    ) -> Jobs:
        """Returns a copy of `jobs` in which each job has the nodes where it runs or ran last."""
        nodes = [self._last_place[job].nodes if job in self._last_place else () for job in active]
        return replace(
            jobs,
            running_on=np.array(
                [running[j].generation if j in running else NOWHERE for j in active], dtype=np.int64
            ),
            resident=np.array([state.now - self._since[j] if j in running else 0.0 for j in active]),
            place_start=np.cumsum([0, *map(len, nodes)], dtype=np.int64),
            place_node=np.array([node for some in nodes for node in some], dtype=np.int64),
            attained=self._had(active),
        )

    def _had(self, active: Sequence[int]) -> Floats | None:
        """Returns the GPU-seconds of each generation that each active job has received so far, as an array (J, K).

        Returns None unless the policy needs these numbers.
        """
        if self._attained is None:
            return None
        nothing = np.zeros(self._machines.generations)
        had = [self._attained.get(job, nothing) for job in active]
        return np.array(had).reshape(len(active), len(nothing))
