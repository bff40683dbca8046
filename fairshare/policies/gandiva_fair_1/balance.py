"""What accounts are owed: the memory of the scheduler between rounds."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Floats


def settle(  # noqa: PLR0917 - in the order of the formula
    owed: Floats, share: Floats, received: Floats, dt: float, memory: float, active: Bools
) -> Floats:
    """(T, K) GPU-seconds owed after `dt` seconds in which leaves had `share` GPUs.

    All are (T, K); `received` is in GPU-seconds; `active`, (T, K) or (T,), marks those with jobs: the
    others start anew, for absence earns no credit.

    Debts are between accounts: where all together received less of a generation than their shares (nodes
    were down, gangs were switching or did not fit), shares shrink to what there was, so that nobody is
    owed time that nobody had. What an account is owed grows to no more than `memory` seconds of its share
    of all generations, and what it owes to no more than that and the last gang's time.
    """
    earned = share * dt
    all_earned, all_received = earned.sum(axis=0), received.sum(axis=0)
    there_was = np.divide(all_received, all_earned, out=np.ones_like(all_earned), where=all_earned > 0)
    balance = owed + earned * np.minimum(there_was, 1.0) - received
    limit = memory * share.sum(axis=1, keepdims=True)
    # A share that shrinks does not wipe out what was owed before; it only stops the debt from growing.
    balance = np.clip(balance, np.minimum(owed, -limit - received), np.maximum(owed, limit))
    return np.where(active if active.ndim == balance.ndim else active[:, None], balance, 0.0)
