"""Pauses of clusters, and the traces they were imported from, get tables: until now only the audit trail had them."""

from collections.abc import Iterator
from typing import Any

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

TRACES = """
INSERT INTO scheduling_importedtrace (cluster_id, fingerprint)
SELECT DISTINCT ON (after ->> 'fingerprint') cluster.id, after ->> 'fingerprint'
  FROM accounting_auditevent event JOIN scheduling_cluster cluster ON cluster.id::text = event.target_id
 WHERE verb = 'cluster.import' AND after ->> 'fingerprint' <> '' ORDER BY after ->> 'fingerprint', event.id;
"""


def write_pauses(apps: Any, schema_editor: Any) -> None:
    event, cluster, pause = (
        apps.get_model(*name).objects.using(schema_editor.connection.alias)
        for name in (("accounting", "AuditEvent"), ("scheduling", "Cluster"), ("scheduling", "ClusterPause"))
    )
    for pk in cluster.values_list("pk", flat=True):
        found = event.filter(
            verb__in=("cluster.pause", "cluster.resume"), target_type="cluster", target_id=str(pk)
        )
        told = found.order_by("at", "id").values_list("at", "verb")
        pause.bulk_create([pause.model(cluster_id=pk, during=during) for during in stretches(told)])


def stretches(told: Any) -> Iterator[DateTimeTZRange]:
    """A pause during a pause begins none, and neither does the end of none end one."""
    since = None
    for at, verb in told:
        if verb == "cluster.pause":
            since = since or at
        elif since is not None:
            yield DateTimeTZRange(since, at)
            since = None
    if since is not None:
        yield DateTimeTZRange(since, None)


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0033_facts_out_of_the_audit_trail'),
        ('scheduling', '0063_one_reserved_lease_a_job'),
    ]

    operations = [
        migrations.CreateModel(
            name='ImportedTrace',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('fingerprint', models.CharField(max_length=64, unique=True)),
                ('cluster', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='trace', to='scheduling.cluster')),
            ],
        ),
        migrations.CreateModel(
            name='ClusterPause',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='pauses', to='scheduling.cluster')),
            ],
            options={
                'constraints': [django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('cluster', '='), ('during', '&&')], name='a_cluster_is_paused_once_at_any_moment')],
            },
        ),
        migrations.RunSQL(TRACES, migrations.RunSQL.noop),
        migrations.RunPython(write_pauses, migrations.RunPython.noop),
    ]
