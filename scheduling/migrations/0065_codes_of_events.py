"""Events, ends of jobs and leases get codes. Old texts that are known become codes; others stay as they are."""

from typing import Any

from django.conf import settings
from django.db import migrations, models

AGAIN = "it starts again, from its checkpoint if it wrote one"
TEXT, NUMBER, BACK = "", "::int", "starts_again"
# By kind of event: code, pattern of the text, and the parameters that its groups are, in order, with their types.
KNOWN: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("submitted", "imported", "Imported from a trace", {}),
    (
        "submitted",
        "submitted_by_schedule",
        "Submitted by the schedule “(.*)”(?:, as (.+) asked)?",
        {"schedule": TEXT, "user": TEXT},
    ),
    ("submitted", "submitted", "Submitted by (.+)", {"user": TEXT}),
    ("submitted", "session_begun", "Session begun by (.+)", {"user": TEXT}),
    (
        "submitted",
        "replica_made",
        r"Made as replica (\d+) of (.+), revision (\d+)",
        {"slot": NUMBER, "service": TEXT, "revision": NUMBER},
    ),
    ("handed_over", "handed_over", r"Handed over from (\S+) to (\S+)", {"before": TEXT, "user": TEXT}),
    ("sharing", "preemptible", r"(\S+): only on GPUs that nobody else wants", {"user": TEXT}),
    ("sharing", "shares_again", r"(\S+): with its part in the sharing again", {"user": TEXT}),
    ("kept", "session_kept", r"Kept by (\S+)", {"user": TEXT}),
    ("started", "imported_start", "Ran, as the trace tells", {}),
    ("started", "started", r"Running on (\d+) (.+)", {"gpus": NUMBER, "generation": TEXT}),
    ("ready", "ready", "Ready; it answers at (.*)", {"address": TEXT}),
    ("unready", "unready", "Not ready any more(?:: (.*))?", {"why": TEXT}),
    ("released", "frozen", "Frozen; goes on at its next turn", {}),
    ("released", "stopped", f"Stopped; at its next turn {AGAIN}", {}),
    ("released", "vanished", rf"Its processes vanished; {AGAIN}\. (.*)", {"message": TEXT}),
    ("released", "not_started", "Its GPUs were given back before it had started", {}),
    ("unfrozen", "unfrozen", f"Its frozen processes are gone; ({AGAIN})", {BACK: TEXT}),
    (
        "unfrozen",
        "drained",
        f"(\\S+) is being drained(?:: (.*))?; ({AGAIN})",
        {"node": TEXT, "reason": TEXT, BACK: TEXT},
    ),
    ("start_failed", "start_failed", "Could not be started: (.*)", {"message": TEXT}),
    ("succeeded", "imported_end", "Ended, as the trace tells", {}),
    ("succeeded", "succeeded", "Succeeded", {}),
    ("succeeded", "succeeded", "(.*)", {"message": TEXT}),
    (
        "failed",
        "given_up",
        r"Given up after (\d+) starts in a row that failed or did not last",
        {"starts": NUMBER},
    ),
    ("failed", "failed", "Failed", {}),
    ("failed", "failed", "(.*)", {"message": TEXT}),
    ("gone", "gone", "All its processes are gone", {}),
    ("gone", "cancelled_gone", "Cancelled; all its processes are gone", {}),
    ("gone", "cancelled_early", "Cancelled before it had started", {}),
    ("cancel", "cancelled", r"Cancelled by (\S+)", {"user": TEXT}),
    (
        "cancel",
        "next_run",
        "Cancelled by the schedule “(.*)”: its next run takes the place of this one",
        {"schedule": TEXT},
    ),
    ("cancel", "owner_leaves", r"Cancelled: (\S+) leaves", {"user": TEXT}),
    ("cancel", "deleted", "Cancelled: (.*)", {"message": TEXT}),
    ("cancel", "stopped_by", r"Stopped by (\S+)", {"user": TEXT}),
    ("cancel", "session_idle", r"Stopped: nobody has used it for (\d+) min", {"minutes": NUMBER}),
    ("cancel", "session_over", r"Stopped: its (\d+) h are over", {"hours": NUMBER}),
    ("cancel", "time_limit", "Stopped: the longest run of (.+) is (.+) h", {"whose": TEXT, "hours": TEXT}),
    ("cancel", "service_removed", "Ended: (.+) was removed", {"service": TEXT}),
    ("cancel", "service_stopped", "Ended: (.+) was stopped", {"service": TEXT}),
    (
        "cancel",
        "service_changes",
        r"Ended: (.+) changes to revision (\d+)",
        {"service": TEXT, "revision": NUMBER},
    ),
    (
        "cancel",
        "service_shrinks",
        r"Ended: (.+) has (\d+) replicas? now",
        {"service": TEXT, "replicas": NUMBER},
    ),
    ("preempted", "moved", "Moved: it stops here with its grace and goes on elsewhere", {}),
    ("preempted", "team_archived", "Stopped: its team is archived; it goes on if the team is restored", {}),
    ("preempted", "owner_may_not", "Stopped: its owner may not run jobs in its team any more", {}),
    ("preempted", "not_idle", "Preempted: it ran on idle GPUs, and others want them", {}),
    ("preempted", "own_jobs", r"Preempted: other jobs of (\S+) go first", {"owner": TEXT}),
    (
        "preempted",
        "claimed",
        r"Preempted: it is the turn of others(?:; jobs that waited get (\d+))?",
        {"waited": NUMBER},
    ),
    (
        "preempted",
        "claimed",
        r"Preempted: (\S+) has (\d+) GPUs?, of which ([\d.]+) are guaranteed(?:; jobs that waited get (\d+))?",
        {"owner": TEXT, "gpus": NUMBER, "guaranteed": "::float", "waited": NUMBER},
    ),
    ("preempted", "portal_stopped", "Fairlot is shutting down", {}),
    (
        "preempted",
        "node_lost_gpus",
        r"(\S+) has lost GPUs: (\d+) of (\d+) work",
        {"node": TEXT, "works": NUMBER, "gpus": NUMBER},
    ),
    (
        "preempted",
        "node_exchanged",
        r"(\S+) has other GPUs now \((\d+) (.+)\)",
        {"node": TEXT, "gpus": NUMBER, "generation": TEXT},
    ),
    ("preempted", "drained", r"(\S+) is being drained(?:: (.*))?", {"node": TEXT, "reason": TEXT}),
    ("place_lost", "chosen_node_gone", "Picked, but a node that was chosen for it is no longer there", {}),
    (
        "place_lost",
        "chosen_gpus_held",
        r"Picked, but the (\d+) GPUs? of (\S+) that it was to have could not be had:"
        r" others hold all but (\d+) of its GPUs",
        {"gpus": NUMBER, "node": TEXT, "free": NUMBER},
    ),
    ("cluster", "cluster_said", "(.*)", {"message": TEXT}),
)
CODE = """
UPDATE scheduling_jobevent SET code = %s, text = '', detail = detail || jsonb_build_object({parameters})
 WHERE kind = %s AND code = '' AND text ~ %s
"""
ENDS = """
-- What the ends of jobs say is what their last cancellation says.
UPDATE scheduling_job job SET end_code = event.code, end_detail = event.detail - 'cause', end_message = ''
  FROM (
    SELECT DISTINCT ON (job_id) job_id, code, detail FROM scheduling_jobevent
     WHERE kind = 'cancel' ORDER BY job_id, id DESC
  ) event
 WHERE event.job_id = job.id AND event.code <> '' AND (job.end_reason = 'cancelled' OR job.state = 'cancelling');
UPDATE scheduling_job SET end_reason = CASE WHEN state IN ('succeeded', 'failed', 'cancelled') THEN state ELSE '' END
 WHERE end_reason NOT IN ('', 'succeeded', 'failed', 'stopped', 'lost', 'start_failed', 'deleted', 'cancelled');
UPDATE scheduling_lease lease SET stop_cause = event.cause
  FROM (
    SELECT DISTINCT ON (job_id, epoch) job_id, epoch,
           coalesce(detail ->> 'cause', CASE code WHEN 'drained' THEN 'drained' WHEN 'portal_stopped' THEN code END)
               AS cause
      FROM scheduling_jobevent WHERE kind IN ('preempted', 'cancel') ORDER BY job_id, epoch, id
  ) event
 WHERE event.job_id = lease.job_id AND event.epoch = lease.epoch AND lease.stop_asked_at IS NOT NULL
   AND event.cause IN ('claimed', 'own_jobs', 'limit', 'moved', 'drained', 'lost', 'team_archived', 'owner_may_not',
                       'portal_stopped', 'person', 'replaced', 'ended', 'not_ready');
UPDATE scheduling_lease SET end_reason = CASE end_reason
    WHEN 'exit' THEN 'succeeded'
    WHEN 'stopped before it began' THEN 'never_started'
    WHEN 'the node was closed' THEN 'node_closed'
    WHEN 'not needed any more' THEN 'not_needed'
    WHEN 'its owner may not any more' THEN 'owner_may_not'
    ELSE CASE WHEN held_from IS NULL THEN 'withdrawn' ELSE 'stopped' END
 END
 WHERE end_reason NOT IN (
    '', 'succeeded', 'failed', 'stopped', 'frozen', 'lost', 'start_failed', 'deleted', 'never_started', 'withdrawn',
    'cancelled', 'drained', 'node_closed', 'not_needed', 'owner_may_not', 'shutdown');
"""


def code_events(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        for kind, code, pattern, parameters in KNOWN:
            pattern = f"^{pattern}$"
            values, groups = [], []
            for place, (name, kind_of_value) in enumerate(parameters.items(), 1):
                group = f"(regexp_match(text, %s))[{place}]"
                value = "true" if name == BACK else f"coalesce({group}, '')" if name == "message" else f"{group}{kind_of_value}"
                values.append(f"'{name}', {value}")
                groups += [] if name == BACK else [pattern]
            cursor.execute(CODE.format(parameters=", ".join(values)), [code, *groups, kind, pattern])


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0033_facts_out_of_the_audit_trail'),
        ('scheduling', '0064_facts_out_of_the_audit_trail'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='end_code',
            field=models.CharField(blank=True, db_default='', default='', max_length=40),
        ),
        migrations.AddField(
            model_name='job',
            name='end_detail',
            field=models.JSONField(db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name='jobevent',
            name='code',
            field=models.CharField(blank=True, db_default='', default='', max_length=40),
        ),
        migrations.AddField(
            model_name='lease',
            name='stop_cause',
            field=models.CharField(blank=True, db_default='', default='', max_length=20),
        ),
        migrations.AlterField(
            model_name='jobevent',
            name='text',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.RunPython(code_events, migrations.RunPython.noop),
        migrations.RunSQL(ENDS, migrations.RunSQL.noop),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('end_code__in', ['', 'submitted', 'submitted_by_schedule', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end']), ('end_reason__in', ['', 'succeeded', 'failed', 'stopped', 'lost', 'start_failed', 'deleted', 'cancelled'])), name='ends_of_jobs'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.CheckConstraint(condition=models.Q(('code__in', ['', 'submitted', 'submitted_by_schedule', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end'])), name='codes_of_job_events'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.CheckConstraint(condition=models.Q(('code', ''), ('text', ''), _connector='OR'), name='an_event_has_a_code_or_a_text'),
        ),
        migrations.AddConstraint(
            model_name='lease',
            constraint=models.CheckConstraint(condition=models.Q(('end_reason__in', ['', 'succeeded', 'failed', 'stopped', 'frozen', 'lost', 'start_failed', 'deleted', 'never_started', 'withdrawn', 'cancelled', 'drained', 'node_closed', 'not_needed', 'owner_may_not', 'shutdown']), ('stop_cause__in', ['', 'claimed', 'own_jobs', 'limit', 'moved', 'drained', 'lost', 'team_archived', 'owner_may_not', 'portal_stopped', 'person', 'replaced', 'ended', 'not_ready'])), name='ends_of_leases'),
        ),
    ]
