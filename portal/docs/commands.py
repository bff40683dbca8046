"""Maps each page of the portal to the commands of `fairlot` that do the same, which the page shows in its top bar.

tests/clients/test_pages.py checks that the command line accepts every command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from scheduling.models import Job

LONGEST = 200  # characters of a value that is taken from the address

Query = Mapping[str, str]
# By the name of the URL: the commands, with {pk} and {slug} of the address.
COMMANDS: dict[str, tuple[str, ...]] = {
    "home": ("fairlot list --mine", "fairlot share"),
    "submit": (
        "fairlot submit -f job.yaml",
        "fairlot submit --check -f job.yaml",
        "fairlot submit --draft -f job.yaml",
    ),
    "drafts": ("fairlot drafts list",),
    "templates": ("fairlot templates list",),
    "template": ("fairlot templates show {pk}",),
    "template_use": ("fairlot submit --template {pk} -P lr=0.1",),
    "template_new": (
        "fairlot templates publish 'A name' -d 'What it does' --team astro -f job.yaml --parameters parameters.yaml",
    ),
    "template_edit": (
        "fairlot templates publish --version-of {pk} -d 'What is new' -f job.yaml --parameters parameters.yaml",
    ),
    "job": (
        "fairlot show {pk}",
        "fairlot why {pk}",
        "fairlot logs -f {pk}",
        "fairlot cancel {pk}",
        "fairlot notify follow {pk}",
    ),
    "job_log": ("fairlot logs -f {pk}", "fairlot logs --all {pk}", "fairlot logs --grep TEXT -C 3 {pk}"),
    "job_events": ("fairlot events {pk}",),
    "job_metrics": (
        "fairlot metrics {pk}",
        "fairlot metrics {pk} --by-step",
        "fairlot metrics {pk} --points 500 -o json",
    ),
    "jobs_views": ("fairlot view list",),
    "job_edit": ("fairlot edit {pk} --priority 10", "fairlot edit {pk} --time-limit 3h"),
    "job_files": (
        "fairlot files get {pk} --results",
        "fairlot files list {pk}",
        "fairlot files get {pk} work/",
    ),
    "job_terminal": ("fairlot shell {pk}",),
    "storage": ("fairlot storage",),
    "sweeps_views": ("fairlot view list --of sweeps",),
    "sweep_new": ("fairlot sweep create --dry-run --grid lr=0.1,0.01 -f job.yaml",),
    "sweep": ("fairlot sweep show {pk}", "fairlot sweep members {pk}", "fairlot sweep cancel {pk}"),
    "pipelines_views": ("fairlot view list --of pipelines",),
    "pipeline_new": ("fairlot pipeline submit pipeline.yaml",),
    "pipeline": ("fairlot pipeline show {pk}", "fairlot pipeline rerun {pk}", "fairlot pipeline cancel {pk}"),
    "job_spec": ("fairlot show {pk} -o yaml", "fairlot clone {pk} --name again"),
    "sessions_views": ("fairlot view list --of sessions",),
    "session_new": ("fairlot session open -f job.yaml",),
    "session": (
        "fairlot session show {pk}",
        "fairlot session keep {pk}",
        "fairlot session stop {pk}",
        "fairlot session again {pk}",
    ),
    "services_views": ("fairlot view list --of services",),
    "service_new": ("fairlot service create -f job.yaml --replicas 2",),
    "service": ("fairlot service show {pk}", "fairlot service metrics {pk}", "fairlot service scale {pk} 2"),
    "service_log": ("fairlot service logs -f {pk}",),
    "service_update": ("fairlot service update {pk} -f job.yaml",),
    "schedules_views": ("fairlot view list --of schedules",),
    "schedule_new": ("fairlot schedule create --when '30 2 * * MON-FRI' -f job.yaml",),
    "schedule": ("fairlot schedule show {pk}", "fairlot schedule run {pk}", "fairlot schedule pause {pk}"),
    "cluster": ("fairlot top", "fairlot top --by team --generation A100", "fairlot node list"),
    "cluster_consumers": ("fairlot top", "fairlot top --by team --period day", "fairlot top --period week"),
    "usage_statement": ("fairlot statement > statement.pdf",),
    "usage_idle": ("fairlot idle",),
    "requests": ("fairlot request list",),
    "request": ("fairlot request show {pk}",),
    "request_new": ("fairlot request limit gpus 16 --team {slug} --reason 'Why we need it'",),
    "own_limits": ("fairlot limits --mine",),
    "team": (
        "fairlot team members {slug}",
        "fairlot team invite {slug} --days 7",
        "fairlot limits --team {slug}",
        "fairlot budgets --team {slug}",
    ),
    "admin_tenant": ("fairlot team members {slug}", "fairlot limits --team {slug}"),
    "admin_nodes": ("fairlot node list",),
    "admin_cluster_drain": ("fairlot node list",),
    "reservations": ("fairlot reservation list",),
    "reservation": ("fairlot reservation show {pk}", "fairlot reservation cancel {pk}"),
    "reservation_new": (
        "fairlot reservation create CLUSTER TEAM --name course --gpu-type V100 --gpus 4 --from 2027-01-04T08:00Z"
        " --until 2027-01-04T12:00Z --dry-run",
    ),
    "admin_announcements": (
        "fairlot announcement list --all",
        "fairlot announcement create 'Maintenance on Monday'",
    ),
    "admin_announcement": ("fairlot announcement withdraw {pk}",),
    "admin_settings": (
        "fairlot cluster settings CLUSTER",
        "fairlot cluster set CLUSTER --quantum 120 --dry-run",
        "fairlot idle-rule list",
        "fairlot idle-rule set stop 60 --dry-run",
    ),
    "admin_audit": (
        "fairlot audit --object astro --kind members",
        "fairlot audit --from 2026-11-01 --export csv > audit.csv",
    ),
    "admin_generations": ("fairlot price list", "fairlot price set A100 2.50 --from 2027-01-01T00:00Z"),
    "admin_clusters": ("fairlot cluster list",),
    "notifications": ("fairlot notices", "fairlot notices --unread --read"),
    "notification_settings": ("fairlot notify list", "fairlot notify set -e job.failed --daily --mail"),
    "secrets": ("fairlot secret list",),
    "tokens": ("fairlot login {url}",),
}


def _list_of_jobs(query: Query) -> list[str]:
    words = ["fairlot", "list"]
    if query.get("state") in Job.State.values:
        words += ["--state", query["state"]]
    if query.get("owner") == "me":
        words.append("--mine")
        query = dict(query.items()) | {"owner": ""}
    options = {"owner": "--owner", "team": "--team", "label": "--label", "q": "--search"}
    order = {"group": "--group-by"} if query.get("group") else {"sort": "--sort"}
    return words + _options(query, options | order)


def _options(query: Query, names: Mapping[str, str]) -> list[str]:
    found = {option: query.get(name, "").strip()[:LONGEST] for name, option in names.items()}
    return [
        word for option, value in found.items() if value.isprintable() and value for word in (option, value)
    ]


def _of_team(*words: str) -> Callable[[Query], list[str]]:
    return lambda query: ["fairlot", *words, *_options(query, {"team": "--team"})]


def _list_of_work(group: str) -> Callable[[Query], list[str]]:
    def words(query: Query) -> list[str]:
        owner = "" if query.get("owner") == "me" else query.get("owner", "")
        options = {"owner": "--owner", "team": "--team", "sort": "--sort", "view": "--view"}
        return ["fairlot", group, "list", *_options(dict(query.items()) | {"owner": owner}, options)]

    return words


# Pages whose command depends on the query of the address.
BY_QUERY: dict[str, Callable[[Query], list[str]]] = {
    "jobs": _list_of_jobs,
    "sweeps": _list_of_work("sweep"),
    "pipelines": _list_of_work("pipeline"),
    "services": _list_of_work("service"),
    "schedules": _list_of_work("schedule"),
    "sessions": _list_of_work("session"),
    "share": _of_team("share"),
    "trades": _of_team("trades"),
    "usage": _of_team("usage"),
}


def commands_for(url_name: str | None, places: Mapping[str, Any], query: Query, *, portal: str) -> list[str]:
    """Returns the commands for a page; none if the command line cannot do what the page does.

    `places` are the values in the address's path, `query` those in its query, and `portal` is the portal's URL.
    """
    if url_name in BY_QUERY:
        return [shlex.join(BY_QUERY[url_name](query))]
    values = {name: shlex.quote(str(value)) for name, value in {**places, "url": portal}.items()}
    return [text.format(**values) for text in COMMANDS.get(url_name or "", ())]
