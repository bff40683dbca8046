"""GPUs at once: what the quotas up the tree still allow while gangs are being picked."""

from __future__ import annotations

import numpy as np

from fairshare.model import Accounts, Floats
from fairshare.tree import Tree


class Quotas:
    """Counts what each limited account and all below it were given."""

    def __init__(self, tree: Tree, accounts: Accounts) -> None:
        self._tree, self._accounts = tree, accounts
        self._used = np.zeros(accounts.cap.shape)
        limited = np.isfinite(accounts.cap_total) | np.isfinite(accounts.cap).any(axis=1)
        self._limited: list[list[int]] = [[] for _ in range(len(tree.parent))]
        for account, above in enumerate(tree.parent.tolist()):
            inherited = self._limited[above] if above >= 0 else []
            self._limited[account] = [account, *inherited] if limited[account] else inherited

    def allow(self, account: int, generation: int, gpus: int) -> bool:
        """Whether the account may be given so many more GPUs."""
        cap, cap_total, used = self._accounts.cap, self._accounts.cap_total, self._used
        return all(
            used[t, generation] + gpus <= cap[t, generation] and used[t].sum() + gpus <= cap_total[t]
            for t in self._limited[account]
        )

    def use(self, account: int, generation: int, gpus: int) -> None:
        for t in self._limited[account]:
            self._used[t, generation] += gpus

    def left(self) -> tuple[Floats, Floats]:
        """(T, K) and (T,) GPUs that each account may still be given: of each generation, and in all."""
        cap = self._accounts.cap - self._used
        cap_total = self._accounts.cap_total - self._used.sum(axis=1)
        return self._tree.least_on_path(cap), self._tree.least_on_path(cap_total)
