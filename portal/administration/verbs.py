"""How pages name what an audit event records: the words for each verb, and the kind of change that it is.

Both audit pages, of a team and of the whole installation, take their words and their filter by kind from here.
`tests/portal/administration/test_verbs.py` fails if an action records a verb that has no words.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import TextChoices


class Kind(TextChoices):
    """What a change is about. The order is that of the filter."""

    MEMBERS = "members", "Members, roles and invitations"
    TICKETS = "tickets", "Tickets and trades"
    LIMITS = "limits", "Limits"
    BUDGETS = "budgets", "Budgets"
    REQUESTS = "requests", "Requests"
    TEAMS = "teams", "Teams: name, place, archive"
    RESERVATIONS = "reservations", "Advance reservations"
    SECRETS = "secrets", "Secrets and volumes"
    TEMPLATES = "templates", "Templates"
    RULES = "rules", "Rules for idle GPUs"
    NOTICES = "notices", "Notifications, reports and announcements"
    JOBS = "jobs", "Jobs, files and terminals"
    MANY = "many", "Sweeps, pipelines and schedules"
    SERVICES = "services", "Services and sessions"
    USERS = "users", "Users, logins and tokens"
    CLUSTERS = "clusters", "Clusters and nodes"
    PRICES = "prices", "GPU types and prices"
    BOOKS = "books", "Ledger"


# Work that members do from day to day. A team's list of changes leaves it out unless somebody asks for it.
WORK = frozenset({Kind.JOBS, Kind.MANY, Kind.SERVICES})

WORDS: dict[Kind, dict[str, str]] = {
    Kind.MEMBERS: {
        "member.add": "Added a member",
        "member.change": "Changed a member",
        "member.remove": "Removed a member",
        "member.hand_over": "Handed over a leaving member's work",
        "invitation.create": "Created an invitation",
        "invitation.revoke": "Revoked an invitation",
    },
    Kind.TICKETS: {
        "tenant.set_tickets": "Set a team's tickets",
        "tenant.set_trade_limits": "Set trade limits",
    },
    Kind.LIMITS: {"quota.set": "Set a limit", "quota.remove": "Removed a limit"},
    Kind.BUDGETS: {"budget.set": "Set a budget", "budget.remove": "Removed a budget"},
    Kind.REQUESTS: {
        "request.ask": "Asked for more",
        "request.approve": "Approved a request",
        "request.decline": "Declined a request",
        "request.withdraw": "Withdrew a request",
        "request.end": "Ended what a request had granted",
        "request.overdue": "Reminded of an open request",
    },
    Kind.TEAMS: {
        "tenant.create": "Created a team",
        "tenant.rename": "Renamed a team",
        "tenant.move": "Moved a team",
        "tenant.archive": "Archived a team",
        "tenant.restore": "Restored a team",
        "tenant.delete": "Deleted a team",
    },
    Kind.RESERVATIONS: {
        "advance.create": "Reserved GPUs in advance",
        "advance.change": "Changed an advance reservation",
        "advance.cancel": "Cancelled an advance reservation",
    },
    Kind.SECRETS: {
        "secret.create": "Created a secret",
        "secret.replace": "Replaced the values of a secret",
        "secret.delete": "Deleted a secret",
        "secret.reseal": "Encrypted a secret with the present key",
        "volume.grant": "Granted a volume",
        "volume.withdraw": "Withdrew a volume",
    },
    Kind.TEMPLATES: {"template.publish": "Published a template", "template.withdraw": "Withdrew a template"},
    Kind.RULES: {"idle_rule.set": "Set a rule for idle GPUs", "idle_rule.remove": "Removed a rule for idle GPUs"},
    Kind.NOTICES: {
        "notification_rule.create": "Created a notification rule",
        "notification_rule.change": "Changed a notification rule",
        "notification_rule.remove": "Removed a notification rule",
        "notification_channel.create": "Created a notification channel",
        "notification_channel.change": "Changed a notification channel",
        "notification_channel.remove": "Removed a notification channel",
        "report.subscribe": "Subscribed to a report",
        "report.unsubscribe": "Unsubscribed from a report",
        "statement.subscribe": "Subscribed to a statement",
        "statement.unsubscribe": "Unsubscribed from a statement",
        "announcement.create": "Created an announcement",
        "announcement.change": "Changed an announcement",
        "announcement.withdraw": "Withdrew an announcement",
    },
    Kind.JOBS: {
        "tenant.take_uid": "Gave a team the system user of its jobs",
        "job.submit": "Submitted a job",
        "job.edit": "Edited a waiting job",
        "job.cancel": "Cancelled a job",
        "job.try_now": "Asked to try a job again now",
        "job.preemptible": "Changed whether a job is preemptible",
        "job.overlong": "Stopped a job at its time limit",
        "job.idle_stop": "Stopped a job with idle GPUs",
        "job.idle_snooze": "Postponed the stop of a job with idle GPUs",
        "job.read_files": "Opened the files of a job",
        "job.delete_files": "Deleted the files of a job",
        "code.upload": "Uploaded code",
        "terminal.open": "Opened a terminal",
        "terminal.close": "Closed a terminal",
    },
    Kind.MANY: {
        "sweep.create": "Created a sweep",
        "sweep.run_again": "Ran members of a sweep again",
        "sweep.cancel": "Cancelled a sweep",
        "sweep.stop": "Stopped a sweep by its rule",
        "pipeline.create": "Created a pipeline",
        "pipeline.run_again": "Ran a pipeline again",
        "pipeline.cancel": "Cancelled a pipeline",
        "schedule.create": "Created a schedule",
        "schedule.change": "Changed a schedule",
        "schedule.pause": "Paused a schedule",
        "schedule.resume": "Resumed a schedule",
        "schedule.delete": "Deleted a schedule",
    },
    Kind.SERVICES: {
        "service.create": "Created a service",
        "service.change": "Changed a service",
        "service.roll_back": "Rolled a service back",
        "service.remove": "Removed a service",
        "service.open": "Opened a service",
        "session.start": "Started a session",
        "session.open": "Opened a session",
        "session.keep": "Kept a session running",
        "session.stop": "Stopped a session",
    },
    Kind.USERS: {
        "user.create": "Created a user",
        "user.describe": "Changed a user's name or e-mail",
        "user.set_portal_role": "Changed a user's role in the portal",
        "user.deactivate": "Deactivated a user",
        "user.reactivate": "Reactivated a user",
        "user.reset_password": "Reset a password",
        "user.set_job_order": "Changed the order of own jobs",
        "user.set_preferences": "Changed own preferences",
        "login.sign_in": "Signed in",
        "login.sign_out": "Signed out",
        "login.fail": "Failed to sign in: wrong password",
        "login.lock_out": "Failed to sign in: locked out after wrong passwords",
        "login.refuse": "Failed to sign in: tried while locked out",
        "login.unlock": "Unlocked a login",
        "terminal_login.allow": "Allowed a login of the command line",
        "terminal_login.deny": "Denied a login of the command line",
        "token.create": "Created an API token",
        "token.revoke": "Revoked an API token",
        "token.revoke_all": "Revoked all own API tokens",
        "list.choose_columns": "Chose the columns of a list",
        "list.save_view": "Saved a view of a list",
        "list.remove_view": "Removed a view of a list",
        "list.choose_view": "Chose the first view of a list",
    },
    Kind.CLUSTERS: {
        "cluster.create": "Created a cluster",
        "cluster.update": "Changed a cluster",
        "cluster.attach": "Attached a cluster",
        "cluster.attach_again": "Attached a cluster again",
        "cluster.detach": "Detached a cluster",
        "cluster.replace_kubeconfig": "Replaced the kubeconfig of a cluster",
        "cluster.check": "Checked the access to a cluster",
        "cluster.set_reachable": "Set which addresses the jobs of a cluster may reach",
        "cluster.set_bare_pods": "Set whether jobs of one worker run as bare pods",
        "cluster.pause": "Paused a cluster",
        "cluster.resume": "Resumed a cluster",
        "cluster.import": "Imported published traces into a cluster",
        "cluster.metrics": "Changed where a cluster's metrics come from",
        "node.declare": "Declared a node",
        "node.remove": "Removed a node",
        "node.found": "Found a new node",
        "node.seen": "Found other facts on a node",
        "node.gone": "Missed a node",
        "node.exchange_gpus": "Exchanged GPUs of a node",
        "node.drain": "Drained a node",
        "node.drain_deadline": "Stopped the jobs that a drain left",
        "node.return": "Put a node back into use",
        "sharing.analyse": "Compared teams with private clusters",
        "sharing.analyse_again": "Asked to compare teams with private clusters again",
    },
    Kind.PRICES: {
        "generation.create": "Created a GPU type",
        "generation.delete": "Deleted a GPU type",
        "generation.set_weight": "Set the weight of a GPU type",
        "price.set": "Set a price",
        "price.remove": "Removed a planned price",
    },
    Kind.BOOKS: {
        "ledger.correct": "Corrected a bill",
        "ledger.archive": "Archived a month of the ledger",
        "ledger.bring_back": "Brought an archived month back",
        "ledger.resume_sealing": "Resumed the sealing of the ledger",
    },
}  # fmt: skip
_ALL = {verb: words for verbs in WORDS.values() for verb, words in verbs.items()}


def words_for(verb: str) -> str:
    """Returns what was done, as words: "Submitted a job" for "job.submit". A verb of an older version that has no words
    keeps its code."""
    return _ALL.get(verb, verb)


def verbs_of(kinds: Iterable[str]) -> list[str]:
    """Returns the verbs of these kinds of change."""
    return [verb for kind in kinds for verb in WORDS[Kind(kind)]]


def said_by(text: str) -> list[str]:
    """Returns the verbs in whose words each word of `text` begins a word, such as "price.set" for "price"."""
    wanted = text.lower().split()
    return [
        verb
        for verb, words in _ALL.items()
        if wanted and all(any(one.startswith(word) for one in words.lower().split()) for word in wanted)
    ]


def choices(verbs: Iterable[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the options of a select of actions in groups by kind: the kind's label with verbs and their words.

    Only `verbs` are offered. Those without words come last.
    """
    wanted = set(verbs)
    groups = [
        (str(kind.label), [(verb, words) for verb, words in WORDS[kind].items() if verb in wanted])
        for kind in Kind
    ]
    groups.append(("Other", [(verb, verb) for verb in sorted(wanted - set(_ALL))]))
    return [(label, options) for label, options in groups if options]
