"""The program `fairlot` and its commands."""

from __future__ import annotations

import click

from fairlot_client.cli.app import Root
from fairlot_client.cli.commands import (
    account,
    administration,
    announcements,
    audit,
    cluster,
    drafts,
    files,
    idle_rules,
    imports,
    jobs,
    metrics,
    notifications,
    pipelines,
    prices,
    programs,
    reports,
    reservations,
    shell,
    sweeps,
    templates,
)
from fairlot_client.cli.commands.completion import completion
from fairlot_client.version import VERSION


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="fairlot")
@click.option("--context", help="Context (portal) to use; also FAIRLOT_CONTEXT.")
@click.option("--no-color", is_flag=True, help="Write no colours; also NO_COLOR.")
def cli(context: str | None, no_color: bool) -> None:
    """Submit and follow jobs on a GPU cluster with Fairlot.

    Data goes to stdout, and everything else to stderr. Most commands write JSON with `-o json`.
    """


for _command in (
    account.login,
    account.logout,
    account.whoami,
    account.context,
    jobs.submit,
    jobs.run,
    jobs.list_jobs,
    jobs.view,
    jobs.show,
    jobs.why,
    jobs.logs,
    jobs.events,
    shell.shell,
    metrics.metrics,
    jobs.cancel,
    jobs.clone,
    jobs.edit,
    jobs.preemptible,
    files.files,
    files.storage,
    sweeps.sweep,
    pipelines.pipeline,
    drafts.drafts,
    templates.templates,
    imports.convert,
    notifications.notices,
    notifications.notify,
    programs.session,
    programs.service,
    programs.schedule,
    cluster.top,
    cluster.node,
    cluster.cluster,
    announcements.announcement,
    reservations.reservation,
    prices.price,
    audit.audit,
    reports.share,
    reports.trades,
    reports.usage,
    reports.statement,
    reports.idle,
    idle_rules.idle_rule,
    reports.limits,
    reports.limit,
    reports.budgets,
    reports.request,
    administration.team,
    administration.secret,
    administration.volumes,
    administration.call,
    completion,
):
    cli.add_command(_command)


def main() -> None:
    """Runs the program."""
    cli(prog_name="fairlot")
