"""Cron expressions with five fields, in a time zone. Clock changes are handled as in Debian's cron (man 8 cron).

- Fixed times (explicit minutes and hours, such as 30 2 * * *): each run happens exactly once a day. If a clock change
  repeats the hour of a run, the run is not repeated. If a clock change skips the hour of a run, the run happens at the
  end of the skipped hour.
- Wildcards (minutes or hours begin with *): a run happens each time that local clocks show one of the due times. So
  there is no run in a skipped hour, and there are runs in both passes of a repeated hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from scheduling.timetable.cron_fields import interval_of, uneven_steps
from scheduling.timetable.cron_words import in_words
from scheduling.timetable.local_time import soon_set_back, wall_at, when_reached, when_shown

ANY_DAY = datetime(2000, 1, 1)


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone. Raises ValueError for an invalid expression, with a message for users."""

    expression: str
    zone: ZoneInfo

    def __post_init__(self) -> None:
        try:
            walls = self._walls_after(ANY_DAY)
        except CronSimError as error:
            raise ValueError(f"this is not a valid cron expression: {str(error).lower()}") from None
        if next(walls, None) is None:
            raise ValueError("no day in the next 50 years matches the expression")

    def after(self, moment: datetime) -> datetime | None:
        """Returns the first due time after `moment`; None if there are no more due times."""
        wall = wall_at(moment, self.zone)
        best: datetime | None = None
        # If the clocks are set back soon, some past local times come a second time, so the search begins earlier.
        for candidate in self._walls_after(wall - soon_set_back(moment, self.zone)):
            later = [due for due in self._moments(candidate) if due > moment]
            best = min(filter(None, [best, *later]), default=None)
            if later and candidate > wall:
                break
        return best

    def in_words(self) -> str:
        return in_words(self.expression)

    def notes(self) -> list[str]:
        """Returns a sentence for each field with uneven steps, such as */45 for minutes, because uneven steps
        surprise users."""
        said = []
        for field, step in uneven_steps(self.expression):
            interval = interval_of(self.expression.split(" "), field, step)
            instead = f' For a run every {step} {field.unit}s, write "{interval}".' if interval else ""
            said.append(
                f"Steps of {step} {field.unit}s start again with each {field.around},"
                f" so the last step in the {field.around} can be shorter.{instead}"
            )
        return said

    def _moments(self, wall: datetime) -> list[datetime]:
        minutes, hours, *_ = self.expression.split()
        if minutes.startswith("*") or hours.startswith("*"):
            return when_shown(wall, self.zone)
        return [when_reached(wall, self.zone)]

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        # CronSim gets local times without a zone, because with some zones its search never ends.
        return CronSim(self.expression, wall)
