"""Writes data to stdout: as a table, JSON, YAML or only names."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import update_wrapper
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import click

from fairlot_client.cli.app import App, app_of, printable, talk

P = ParamSpec("P")
R = TypeVar("R")

FORMS = ["table", "json", "yaml", "name"]
COLORS = {
    "running": "green", "succeeded": "green", "ready": "green", "failed": "red", "queued": "yellow",
    "suspended": "yellow", "drained": "yellow", "draining": "yellow", "lost": "red",
}  # fmt: skip
# The title, and a key of the row or a function of it.
Column = tuple[str, str | Callable[[Any], Any]]
WATCH_SECONDS = 2.0


def output_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the option -o, which chooses the form of the output."""

    def choose(context: click.Context, _: click.Parameter, value: str) -> None:
        app_of(context).output = value

    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMS),
        default="table",
        show_default=True,
        expose_value=False,
        callback=choose,
        help="Form of the output.",
    )(command)


points_option = click.option(
    "--points",
    type=click.IntRange(2, 2000),
    default=40,
    show_default=True,
    help="Most points of a series: characters of the line in the table.",
)


def watchable(command: Callable[P, None]) -> Callable[P, None]:
    """Adds the options -o and --watch, which shows the output again and again until Ctrl-C."""

    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        watch = kwargs.pop("watch")
        command(*args, **kwargs)
        app = app_of(click.get_current_context())
        try:
            while watch:
                app.pause(WATCH_SECONDS)
                click.clear()
                command(*args, **kwargs)
        except KeyboardInterrupt:
            pass  # the usual end of watching

    option = click.option(
        "--watch", is_flag=True, help="Show the output again every 2 seconds, until Ctrl-C."
    )
    return output_option(option(update_wrapper(called, command)))


def limit_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options --limit and --all of lists."""
    command = click.option("--all", "everything", is_flag=True, help="Show everything.")(command)
    return click.option(
        "--limit", type=click.IntRange(1), default=50, show_default=True, help="Number of rows."
    )(command)


def list_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options of lists of work: filters, saved view, order, and number of rows."""
    for option in (
        click.option(
            "--sort",
            metavar="COLUMN",
            help="Sort by this column, such as name; -COLUMN for descending order.",
        ),
        click.option("--view", help="Only those of this saved view, given by its name or id, in its order."),
        click.option("-u", "--owner", help="Only those of this user."),
        click.option("-t", "--team", help="Only those of this team."),
    ):
        command = option(command)
    return limit_options(command)


def taken(items: Iterable[R], limit: int, everything: bool) -> list[R]:
    """Returns the first items of a list, and says so if there are more."""
    if everything:
        return list(items)
    found = list(islice(items, limit + 1))
    if len(found) > limit:
        talk(f"Shown: {limit}. There are more: use --limit or --all.")
    return found[:limit]


def show_rows(
    app: App, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, name: str = "id"
) -> None:
    """Writes a list in the chosen form. `name` is the key that `-o name` shows."""
    if app.output == "name":
        for row in rows:
            click.echo(str(row[name]))
    elif app.output != "table":
        click.echo(_document(app.output, list(rows)))
    elif rows:
        click.echo(
            table([title for title, _ in columns], [[_cell(row, of) for _, of in columns] for row in rows])
        )
    else:
        talk("Nothing is listed.")


def show_one(app: App, item: Mapping[str, Any], fields: Sequence[Column], *, name: str = "id") -> None:
    """Writes one object in the chosen form. Fields without a value are left out of the table."""
    if app.output == "name":
        click.echo(str(item[name]))
    elif app.output != "table":
        click.echo(_document(app.output, item))
    else:
        shown = [(title, text) for title, of in fields if (text := _cell(item, of))]
        width = max((len(title) for title, _ in shown), default=0)
        for title, text in shown:
            first, *rest = text.split("\n")
            click.echo(f"{title:<{width}}  {_colored(first)}")
            for line in rest:
                click.echo(f"{'':<{width}}  {line}")


def show_done(app: App, text: str, item: Mapping[str, Any] | None = None, *, name: str = "id") -> None:
    """Says what was done, and writes the changed object if the user asked for it with -o."""
    talk(text)
    if item is not None and app.output != "table":
        show_one(app, item, [], name=name)


def show_created(app: App, text: str, item: Mapping[str, Any], *, key: str = "id") -> None:
    """Says what was created, and writes the field `key`, by which others name it, or the object if the user asked for
    it with -o."""
    talk(text)
    if app.output == "table":
        click.echo(item[key])
    else:
        show_one(app, item, [], name=key)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as aligned columns. On a terminal, long lines are cut at its width."""
    widths = [max(_width(row[place]) for row in [titles, *rows]) for place in range(len(titles))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    head = click.style("".join(_padded(titles, widths, room)).rstrip(), bold=True)
    return "\n".join([head, *("".join(map(_colored, _padded(row, widths, room))).rstrip() for row in rows)])


def _padded(cells: Sequence[str], widths: Sequence[int], room: int) -> Iterator[str]:
    """Yields the cells with the spaces after them, as far as there is room in the line."""
    for cell, width in zip(cells, widths, strict=True):
        text = cell.replace("\n", " ")
        if _width(text) > room:
            yield f"{text[: max(0, room - 1)]}…" if room > 0 else ""
            return
        yield text + " " * (width - _width(text) + 2)
        room -= width + 2


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text
    )


def _colored(text: str) -> str:
    color = COLORS.get(text.rstrip())
    return click.style(text, fg=color) if color else text


def _cell(row: Mapping[str, Any], of: str | Callable[[Any], Any]) -> str:
    value = row.get(of) if isinstance(of, str) else of(row)
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list):
        value = ", ".join(str(one) for one in value)
    return printable(str(value))


def when(key: str) -> Callable[[Mapping[str, Any]], str]:
    """Returns a function that shows the time in the field `key`, in UTC."""

    def shown(row: Mapping[str, Any]) -> str:
        value = row.get(key)
        return f"{value[:10]} {value[11:19]}Z" if value else ""

    return shown


def role_in_words(membership: Mapping[str, Any]) -> str:
    """Returns the role and the tickets of a membership. Viewers run no jobs, so their tickets say nothing."""
    tickets = f", {membership['tickets']} tickets" if membership["role"] != "viewer" else ""
    return f"{membership['role']}{tickets}"


def hours(key: str) -> Callable[[Mapping[str, Any]], str]:
    """Returns a function that shows the GPU-seconds in the field `key` as GPU-hours."""
    return lambda row: f"{float(row[key]) / 3600:.2f}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def money(amount: str, currency: str) -> str:
    """Returns an amount with its currency: two decimals, or as many as it needs."""
    whole, _, decimals = amount.partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')} {currency}"


def between(seconds: Sequence[float]) -> str:
    """Returns an interval from now on, given by its ends in seconds, in words."""
    least, most = seconds
    if most < 60:
        return "less than a minute"
    size, unit = (3600, "hours") if most >= 7200 else (60, "minutes")
    first, last = round(least / size), round(most / size)
    return f"{first} to {last} {unit}" if first < last else f"about {plural(last, unit[:-1])}"


def _document(form: str, data: object) -> str:
    if form == "json":
        return json.dumps(data, indent=2, ensure_ascii=False)
    from fairlot_client.cli.yaml_core import write  # noqa: PLC0415 - the program must start quickly

    return write(data).rstrip("\n")
