"""Commands for the rules for idle GPUs."""

from __future__ import annotations

from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import Column, output_option, show_done, show_one, show_rows

RULES: list[Column] = [
    ("ID", "id"), ("FOR", lambda row: row["team"] or row["cluster"] or "all"), ("ACTION", "action"),
    ("AFTER", lambda row: f"{row['after_minutes']} min"), ("GRACE", lambda row: f"{row['grace_minutes']} min"),
    ("SNOOZE", lambda row: f"{row['snooze_hours']} h"), ("SERVICES", "services"),
]  # fmt: skip
EFFECT: list[Column] = [
    ("running jobs", "running"), ("with idle GPUs", "idle"), ("warned at once", "warned"), ("then", "then"),
    ("of these at once", "due"),
]  # fmt: skip


@click.group("idle-rule")
def idle_rule() -> None:
    """Show, preview, set and remove the rules for idle GPUs. For operators."""


@idle_rule.command("list")
@output_option
@with_app
def list_rules(app: App) -> None:
    """List the rules."""
    show_rows(app, app.client.list_idle_rules(), RULES)


@idle_rule.command("set")
@click.argument("action", type=click.Choice(["nothing", "warn", "preemptible", "stop"]))
@click.argument("after_minutes", type=int)
@click.option("-t", "--team", help="Slug of the team; by default the rule is for all teams.")
@click.option("--cluster", help="Cluster, for the teams without a rule.")
@click.option(
    "--grace", "grace_minutes", type=int, help="Minutes from the warning to the action; by default 30."
)
@click.option("--snooze", "snooze_hours", type=int, help="Longest snooze in hours; by default 24.")
@click.option("--services", is_flag=True, default=None, help="Warn of idle replicas of services, too.")
@click.option("--dry-run", is_flag=True, help="Only show which running jobs it would affect now.")
@output_option
@with_app
def set_rule(app: App, action: Any, after_minutes: int, dry_run: bool, **options: Any) -> None:
    """Say what happens to jobs whose GPUs are idle for AFTER_MINUTES."""
    wanted = {"action": action, "after_minutes": after_minutes, **chosen(options)}
    if dry_run:
        show_one(app, app.client.preview_idle_rule(**wanted), EFFECT)
        return
    made = app.client.set_idle_rule(**wanted)
    show_done(app, f"Set rule {made['id']}.", made)


@idle_rule.command("remove")
@click.argument("rule_id", type=int)
@with_app
def remove_rule(app: App, rule_id: int) -> None:
    """Remove a rule. The next one that applies takes its place."""
    app.client.remove_idle_rule(rule_id)
    talk(f"Removed rule {rule_id}.")
