"""How often, after which exit codes, and after which waits a job starts again when its program has failed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from scheduling.spec import stored
from scheduling.spec.refused_values import RefusedAt

LONGEST_WAIT_SECONDS = 3600
MOST_DOUBLINGS = 12  # more doublings of a second exceed LONGEST_WAIT_SECONDS


class Retries(BaseModel):
    """The field `retries` of a job spec. By default, a job whose program fails is not started again."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    times: Annotated[int, Field(ge=0, le=100)] = 0
    # Only failures with these exit codes are followed by a retry; empty: all failures.
    exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=50)] = []
    # The wait before the first retry. It doubles with each further one.
    backoff_seconds: Annotated[int, Field(ge=1, le=LONGEST_WAIT_SECONDS)] = 60

    @field_validator("exit_codes")
    @classmethod
    def _names_each_code_once(cls, codes: list[int]) -> list[int]:
        for place, code in enumerate(codes):
            if code in codes[:place]:
                raise RefusedAt((place,), f"the list contains {code} twice")
        return codes

    @classmethod
    def of_stored(cls, spec: Any) -> Self:
        """Returns the retries of a stored job spec, without loading the rest of the spec."""
        given = spec.get("retries") if isinstance(spec, Mapping) else None
        return stored.load(cls, given)

    def wait_after(self, failures: int, exit_code: int | None) -> timedelta | None:
        """Returns the wait between the job's failure number `failures` and the retry that follows. Returns None if no
        retry follows.

        `exit_code` is None if it is unknown. A list of exit codes then allows no retry.
        """
        if failures > self.times or (self.exit_codes and exit_code not in self.exit_codes):
            return None
        seconds = self.backoff_seconds * 2 ** min(failures - 1, MOST_DOUBLINGS)
        return timedelta(seconds=min(seconds, LONGEST_WAIT_SECONDS))
