"""An API client that can lose a request or its response when a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Object, Unreachable


class Lossy(OwnApi):
    """An API client that can lose the next write request (`lose = "request"`) or its response (`lose = "answer"`)."""

    lose = ""  # which message to lose next: "request", "answer" or none
    overhear: Callable[[str, Object], None] | None = None

    def create(self, path: str, thing: Object) -> Object:
        if self.overhear:
            self.overhear(path, thing)
        self._before()
        return self._after(super().create(path, thing))

    def patch(self, path: str, operations: Sequence[Mapping[str, object]]) -> Object:
        self._before()
        return self._after(super().patch(path, operations))

    def _before(self) -> None:
        if self.lose == "request":
            self.lose = ""
            raise Unreachable("the request was lost")

    def _after(self, answer: Object) -> Object:
        if self.lose == "answer":
            self.lose = ""
            raise Unreachable("the answer was lost")
        return answer
