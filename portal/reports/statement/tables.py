"""The tables of a statement. The page and all file formats show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal

from django.conf import settings

from accounting.core.wording import to_the_minute
from accounting.ledger.heads import printed
from accounting.limits.past_budgets import MOST_PERIODS
from accounting.models import LedgerHead
from accounting.reports.invoice import TakenBack
from accounting.reports.usage import UsageRow
from portal.reports.formats import PERIOD, STATE, Cell, Column, Document, Kind, Table
from portal.reports.labels import label_name
from portal.reports.statement.figures import Ahead, Statement
from portal.reports.unsettled import PROVISIONAL

TIME = Column("gpu_seconds", "GPU-hours", Kind.GPU_TIME, 4)
AMOUNT = Column("amount", "Amount", Kind.MONEY, 6)
CURRENCY = Column("currency", "Currency")
MEASURES = ("entitled", "lent", "unused", "borrowed", "sold", "bought", "due", "received", "owed")

LACKS = (
    "An archived hour is counted only if the whole hour is in the period. The tables by job, label and "
    "day count an archived day (UTC) only if the whole day is in the period."
)


def document_of(statement: Statement) -> Document:
    period = statement.period
    facts = [
        ("Issued by", statement.issuer),
        ("Number", statement.number),
        ("To", statement.tenant.name),
        (PERIOD, f"{period.first:%-d %B %Y} to {period.last:%-d %B %Y} ({period.zone.key})"),
        ("As of", to_the_minute(statement.at.astimezone(period.zone))),
    ]
    if statement.is_provisional:
        facts.append((STATE, PROVISIONAL))
    if not statement.days and not statement.is_whole and statement.gpu_seconds:
        facts.append(("Days", "This period is long. Only its CSV, XLSX and JSON files list the days."))
    if left := statement.unbooked.in_words(period.zone):
        facts.append(("Usage not booked yet", left))
    if left := statement.unsettled.in_words(period.zone):
        facts.append(("Costs not final yet", left))
    if statement.lacks_before:
        until = to_the_minute(statement.lacks_before.astimezone(period.zone))
        facts.append(("Archived", f"Usage before {until} is archived. {LACKS}"))
    return Document(
        title=f"Statement of {statement.tenant.name}",
        tables=list(tables_of(statement)),
        facts=facts,
        zone=period.zone,
    )


def tables_of(statement: Statement) -> Iterator[Table]:
    """Yields the tables of a statement. If all amounts are in one currency, the column headings name it."""
    currencies = {one.currency for one in statement.totals} | {one.currency for one in statement.lines}
    currencies |= {one.currency for one in statement.taken_back}
    of_table = {
        "budgets": {settings.FAIRLOT_CURRENCY},
        "forecast": {one.currency for one in statement.ahead},
    }
    for table in _tables_of(statement):
        told = of_table.get(table.key, currencies)
        yield replace(table, columns=[_in_currency(column, told) for column in table.columns])


def _in_currency(column: Column, currencies: Collection[str]) -> Column:
    if column.kind != Kind.MONEY or len(currencies) != 1:
        return column
    (currency,) = currencies
    return replace(column, heading=f"{column.heading}, {currency}")


def _tables_of(statement: Statement) -> Iterator[Table]:
    yield _lines(statement)
    if statement.taken_back:
        yield _taken_back(statement)
    yield _held(statement)
    if statement.budgets:
        yield _budgets(statement)
    if statement.ahead:
        yield _ahead(statement.ahead)
    yield _usage(
        statement, "generations", statement.generations, by="generation", heading="GPU", title="By generation"
    )
    yield _people(statement)
    yield _jobs(statement)
    if statement.labels:
        yield _labels(statement)
    if statement.days:
        yield _days(statement)
    yield _shares(statement)
    yield _waits(statement)
    yield _expansions(statement)
    yield _waste(statement)
    if statement.head is not None:
        yield _head(statement.head)


def _head(head: LedgerHead) -> Table:
    return Table(
        "head",
        "Ledger head",
        [Column("head", "Head"), Column("at", "Made at", Kind.MOMENT)],
        [(printed(head), head.at)],
        note="The ledger head is a signed record of everything that was in the ledger's hash "
        "chain when the head was made. Store the head outside Fairlot. With the head, Fairlot can check later that "
        "its ledger still contains all of these entries unchanged.",
    )


def _lines(statement: Statement) -> Table:
    rows = [
        (
            one.generation,
            one.kind.capitalize(),
            one.begins,
            one.ends,
            one.gpu_seconds if one.price is not None or one.gpu_seconds else None,
            one.price,
            one.cost,
            one.currency,
        )
        for one in statement.lines
    ]
    price = Column("price_per_gpu_hour", "Price per GPU-hour", Kind.MONEY, 6)
    return Table(
        "lines",
        "GPU time",
        [
            Column("generation", "GPU"),
            Column("class", "Class"),
            Column("begins", "From", Kind.MOMENT),
            Column("ends", "Before", Kind.MOMENT),
            TIME,
            price,
            AMOUNT,
            CURRENCY,
        ],
        rows,
        totals=[
            ("Total", None, None, None, one.gpu_seconds, None, one.cost, one.currency)
            for one in statement.totals
        ],
        note="The table contains all bookings of the ledger, including corrections. An amount is "
        "GPU-hours × price. The ledger rounds the costs of hours and jobs separately. The "
        "line Rounding contains the difference. A price is valid from the time in the column "
        "From to the time in the column Before. Idle, preemptible and borrowed time "
        "may have separate prices. All other time has the class Owned.",
    )


def _taken_back(statement: Statement) -> Table:
    return Table(
        "corrections",
        "Corrections",
        [
            Column("correction", "Number", Kind.ID),
            Column("at", "Corrected at", Kind.MOMENT),
            Column("by", "By"),
            Column("reason", "Reason"),
            Column("job_id", "Job"),
            Column("job", "Name"),
            Column("generation", "GPU"),
            Column("team", "Team"),
            Column("counterpart", "Billed instead"),
            Column("corrects", "Transactions"),
            TIME,
            AMOUNT,
            CURRENCY,
        ],
        [
            (
                one.correction,
                one.at,
                one.actor,
                one.reason,
                None if one.job_id is None else str(one.job_id),
                one.job,
                one.generation,
                one.team,
                one.counterpart,
                one.corrects and "–".join(str(number) for number in dict.fromkeys(one.corrects)),
                -one.gpu_seconds,
                -one.cost,
                one.currency,
            )
            for one in statement.taken_back
        ],
        totals=[
            ("Total", *[None] * 9, -seconds, -cost, currency)
            for currency, (seconds, cost) in _by_currency(statement.taken_back).items()
        ],
        note="The table contains corrections of usage in this period. A negative amount was taken "
        "back from the team; the table “GPU time” no longer includes it. A positive amount was moved "
        "to the team from another team; the table “GPU time” includes it. The column Number "
        "identifies the correction. The column Transactions contains the numbers of the ledger "
        "transactions that were corrected. After a correction, Fairlot applies the separate prices of idle, "
        "preemptible and borrowed time to the corrected usage. The cost of the team that pays for this usage "
        "then changes.",
    )


def _by_currency(corrections: Sequence[TakenBack]) -> dict[str, tuple[Decimal, Decimal]]:
    found: dict[str, tuple[Decimal, Decimal]] = {}
    for one in corrections:
        seconds, cost = found.get(one.currency, (Decimal(0), Decimal(0)))
        found[one.currency] = seconds + one.gpu_seconds, cost + one.cost
    return dict(sorted(found.items()))


def _held(statement: Statement) -> Table:
    names = {"held": "Held", "busy": "Busy", "idle": "Idle", "assembling": "Workers starting"}
    columns = [
        Column(f"{name}_gpu_seconds", f"{text}, GPU-h", Kind.GPU_TIME, 4) for name, text in names.items()
    ]
    rows = [(one.generation, *(getattr(one, name) for name in names)) for one in statement.held]
    return Table(
        "held",
        "Held GPU time by class",
        [Column("generation", "GPU"), *columns],
        rows,
        totals=[("Total", *_sums(rows, range(1, 5)))],
        note="The column Workers starting contains GPU time that was held before all workers of the gang ran. "
        "The column Idle contains GPU time that was held, but observed to be unused.",
    )


def _budgets(statement: Statement) -> Table:
    others = sorted({one.currency for one in statement.totals} - {settings.FAIRLOT_CURRENCY})
    left_out = (
        f" Budgets are in {settings.FAIRLOT_CURRENCY}. They do not include costs in {' or '.join(others)}."
    )
    money = [
        Column(name, heading, Kind.MONEY, 2)
        for name, heading in (
            ("budget", "Budget"),
            ("spent", "Spent"),
            ("left", "Left"),
            ("forecast", "Forecast"),
        )
    ]
    return Table(
        "budgets",
        "Budgets",
        [
            Column("period", "Period"),
            Column("begins", "From", Kind.DATE),
            Column("ends", "Before", Kind.DATE),
            Column("at", "As of", Kind.MOMENT),
            *money,
            CURRENCY,
        ],
        [
            (
                one.name,
                one.begins.date(),
                one.ends.date(),
                one.at,
                one.amount,
                _rounded(one.spent),
                _rounded(one.left),
                _rounded(one.forecast),
                settings.FAIRLOT_CURRENCY,
            )
            for one in statement.budgets
        ],
        note="The table contains the budgets whose period overlaps the days of this statement: at "
        f"most the latest {MOST_PERIODS} months and the latest {MOST_PERIODS} quarters. The column "
        "As of contains the time for which the amounts were computed. Amounts include usage that is "
        "not booked yet. The forecast is for the end of the budget's period. There is no forecast "
        "in the first two days of the budget's period, and after its end."
        f"{left_out if others else ''}",
    )


def _ahead(ahead: Sequence[Ahead]) -> Table:
    return Table(
        "forecast",
        "Forecast",
        [
            Column("begins", "From", Kind.MOMENT),
            Column("ends", "Before", Kind.MOMENT),
            Column("spent", "Spent", Kind.MONEY, 2),
            Column("forecast", "Forecast", Kind.MONEY, 2),
            CURRENCY,
        ],
        [(one.begins, one.ends, _rounded(one.spent), _rounded(one.forecast), one.currency) for one in ahead],
        note="The forecast is the cost of this month if usage continues at the present rate. It "
        "includes usage that is not booked yet. There is no forecast in the first two days "
        "of a month.",
    )


def _usage(
    statement: Statement,
    key: str,
    rows: Sequence[UsageRow],
    *,
    by: str,
    heading: str,
    title: str,
    note: str = "",
) -> Table:
    return Table(
        key,
        title,
        [Column(by, heading), TIME, AMOUNT, CURRENCY],
        [(getattr(row, by), row.gpu_seconds, row.cost, row.currency) for row in rows],
        totals=_totals(statement, "Total"),
        note=note,
    )


def _totals(statement: Statement, name: str | None) -> list[Sequence[Cell]]:
    """Returns one row of totals for each currency. `name` is the text in the first column of each row."""
    return [(name, one.gpu_seconds, one.cost, one.currency) for one in statement.totals]


def _people(statement: Statement) -> Table:
    users = statement.users
    more = users.count - len(users.rows)
    note = (
        "The table lists only the users with the most GPU time. The total includes all users." if more else ""
    )
    table = _usage(statement, "users", users.rows, by="user", heading="User", title="By user", note=note)
    return replace(table, more=more)


def _jobs(statement: Statement) -> Table:
    return Table(
        "jobs",
        "Largest jobs",
        [Column("job_id", "Number", Kind.TEXT), Column("job", "Job"), TIME, AMOUNT, CURRENCY],
        [(str(row.job_id), row.job, row.gpu_seconds, row.cost, row.currency) for row in statement.jobs.rows],
        more=statement.jobs.count - len(statement.jobs.rows),
    )


def _labels(statement: Statement) -> Table:
    more = statement.more_keys
    keys = f" The CSV, XLSX and JSON files contain {more} more labels." if more else ""
    rows: list[Sequence[Cell]] = []
    for one in statement.labels:
        rows += [
            (one.key, label_name(row.label), row.gpu_seconds, row.cost, row.currency) for row in one.rows
        ]
        rows += [(one.key, "(all others)", row.gpu_seconds, row.cost, row.currency) for row in one.rest]
    return Table(
        "labels",
        "By label",
        [Column("label", "Label"), Column("value", "Value"), TIME, AMOUNT, CURRENCY],
        rows,
        note="For each label, the amounts of its values add up to the total. The value (none) "
        f"stands for jobs without the label.{keys}",
        more=sum(one.count - len(one.rows) for one in statement.labels),
    )


def _days(statement: Statement) -> Table:
    return Table(
        "days",
        "By day",
        [Column("day", "Day", Kind.DATE), TIME, AMOUNT, CURRENCY],
        [
            (row.begins.date() if row.begins else None, row.gpu_seconds, row.cost, row.currency)
            for row in statement.days
        ],
        totals=_totals(statement, None),
    )


def _shares(statement: Statement) -> Table:
    columns = [
        Column(f"{name}_gpu_seconds", f"{name.capitalize()}, GPU-h", Kind.GPU_TIME, 2) for name in MEASURES
    ]
    rows: list[tuple[Cell, ...]] = [
        (generation, *(_exact(getattr(amounts, name)) for name in MEASURES))
        for generation, amounts in statement.shares
    ]
    return Table(
        "shares",
        "Entitled and received GPU time",
        [Column("generation", "GPU"), *columns],
        rows,
        note="Due is the GPU time that the team should have received after lending, borrowing and "
        "trades. Due = entitled − lent − unused + borrowed − sold + bought. Owed = due − received. A "
        "negative owed amount means that the team received more than it was due.",
    )


def _waits(statement: Statement) -> Table:
    figures = (("p50", "Median"), ("p90", "90 %"), ("p95", "95 %"), ("most", "Longest"))
    return Table(
        "waits",
        "Waits for GPUs",
        [
            Column("gpus", "GPUs per job"),
            Column("jobs", "Jobs", Kind.NUMBER),
            *(Column(f"{name}_seconds", f"{heading}, min", Kind.MINUTES, 1) for name, heading in figures),
        ],
        [
            (one.size or "All", one.jobs, *(getattr(one, name) for name, _ in figures))
            for one in statement.waits
        ],
        note="A wait is the time from submission to the first GPUs. The table covers jobs that "
        "got their first GPUs in this period.",
    )


def _expansions(statement: Statement) -> Table:
    names = {"weighted": "Weighted mean", "p50": "Median", "p90": "90 %", "p95": "95 %"}
    return Table(
        "expansions",
        "Expansion factor",
        [
            Column("gpus", "GPUs per job"),
            Column("jobs", "Jobs", Kind.NUMBER),
            *(Column(name, heading, Kind.NUMBER, 2) for name, heading in names.items()),
        ],
        [
            (one.size or "All", one.jobs, *(getattr(one, name) for name in names))
            for one in statement.expansions
        ],
        note="The expansion factor of a job is (time running + time waiting) ÷ time running. A "
        "job that never waited has the factor 1. The table covers training jobs that ended "
        "in this period. In the weighted mean, the weight of a job is its number of GPUs × its time "
        "running.",
    )


def _waste(statement: Statement) -> Table:
    total = statement.waste
    causes = {
        "failed": "Failed jobs",
        "cancelled": "Cancelled jobs",
        "run_again": "Work run again after a suspension",
        "idle": "Idle",
    }
    part = Column("part", "Wasted ÷ held GPU time, %", Kind.NUMBER, 1)
    rows = [
        (text, seconds, _percent(seconds, total.held))
        for name, text in causes.items()
        if (seconds := getattr(total, name)) is not None
    ]
    return Table(
        "waste",
        "Wasted GPU time",
        [Column("cause", "Cause"), TIME, part],
        rows,
        totals=[("Total", total.wasted, _percent(total.wasted, total.held))],
    )


def _percent(part: Decimal, whole: Decimal) -> Decimal | None:
    return (part / whole * 100).quantize(Decimal("0.1")) if whole else None


def _rounded(amount: Decimal | None) -> Decimal | None:
    """Returns an amount rounded to cents, or None for None.

    Used for amounts that are not exact sums of ledger entries, such as forecasts, so that all formats show the same
    figure as the page.
    """
    return None if amount is None else amount.quantize(Decimal("0.01"))


def _exact(seconds: float) -> Decimal:
    return Decimal(repr(float(seconds)))


def _sums(rows: Sequence[Sequence[Cell]], places: Sequence[int]) -> list[Decimal]:
    return [
        sum((cell for row in rows if isinstance(cell := row[place], Decimal)), Decimal(0)) for place in places
    ]
