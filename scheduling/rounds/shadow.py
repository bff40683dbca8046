"""Makes a shadow policy decide past rounds. Its decisions are only recorded, never carried out."""

from __future__ import annotations

import time

from django.db import transaction

from fairshare import codec
from scheduling.core.locks import try_lock_shadow
from scheduling.models import Cluster, Round, ShadowRound
from scheduling.rounds.comparison import figures_of
from scheduling.shares.intervals import describe_shares
from scheduling.shares.situations import (
    Memory,
    options_as_json,
    plan_as_bytes,
    shadow_of_cluster,
    situation_of_shadow,
)
from scheduling.shares.snapshot import Axes

# The most rounds of one transaction; the next transaction continues.
MOST_ROUNDS = 20


@transaction.atomic(durable=True)
def ask_shadow(*, cluster_id: int) -> int:
    """Makes the cluster's shadow policy decide the rounds since its last decision, at most MOST_ROUNDS of them. Returns
    their number.

    A newly chosen shadow policy begins with the latest round. Returns 0 immediately if the cluster has no shadow
    policy, or if another worker is already running it.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    policy = shadow_of_cluster(cluster)
    if policy is None or not try_lock_shadow(cluster_id):
        return 0
    last = (
        ShadowRound.objects.filter(round__cluster=cluster)
        .select_related("round__record")
        .order_by("-round__number")
        .first()
    )
    who = (policy.name, policy.version, options_as_json(policy))
    goes_on = last is not None and (last.policy, last.version, last.options) == who
    rounds = Round.objects.filter(cluster=cluster, record__isnull=False).select_related("record")
    if last is None or not goes_on:
        asked = list(rounds.order_by("-number")[:1])
    else:
        asked = list(rounds.filter(number__gt=last.round.number).order_by("number")[:MOST_ROUNDS])
    for round_ in asked:
        memory = None
        # A recorded round says only what happened since the round directly before it.
        if last is not None and goes_on and last.round.number == round_.number - 1:
            memory = Memory.of(last, Axes.stored(last.round.record.legend))
        situation = situation_of_shadow(policy, round_, memory)
        begins = time.perf_counter()
        plan = situation.decide(round_.seed)
        took = time.perf_counter() - begins
        view, real = situation.view, codec.decode_decision(bytes(round_.record.decision))
        last, goes_on = (
            ShadowRound.objects.update_or_create(
                round=round_,
                defaults={
                    "policy": policy.name,
                    "version": policy.version,
                    "options": who[2],
                    "decide_ms": took * 1000,
                    "shares": describe_shares(view, plan, Axes.stored(round_.record.legend)),
                    "real_figures": figures_of(real, view),
                    "own_figures": figures_of(plan, view),
                    "state": codec.encode_state(situation.state),
                    "plan": plan_as_bytes(plan),
                },
            )[0],
            True,
        )
    return len(asked)
