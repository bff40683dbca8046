"""What nodes were, from when to when: written by the database itself whenever a node changes, and kept."""

import django.db.models.deletion
from django.db import migrations, models

# One function for nodes that come, change and go: a node that is gone has no GPUs.
TRIGGERS = """
CREATE FUNCTION scheduling_note_node() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    node scheduling_node := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    IF TG_OP = 'UPDATE' AND (
        OLD.name, OLD.generation_id, OLD.gpus, OLD.state, OLD.failed_gpus, OLD.others_gpus, OLD.gone_at IS NULL
    ) IS NOT DISTINCT FROM (
        NEW.name, NEW.generation_id, NEW.gpus, NEW.state, NEW.failed_gpus, NEW.others_gpus, NEW.gone_at IS NULL
    ) THEN
        RETURN NULL;
    END IF;
    INSERT INTO scheduling_nodechange (
        cluster_id, node_id, name, generation_id, gpus, state, failed_gpus, others_gpus, at)
    VALUES (
        node.cluster_id, node.id, node.name, node.generation_id,
        CASE WHEN TG_OP = 'DELETE' OR node.gone_at IS NOT NULL THEN 0 ELSE node.gpus END,
        node.state, node.failed_gpus, node.others_gpus, clock_timestamp()
    );
    RETURN NULL;
END $$;
CREATE TRIGGER note_node AFTER INSERT OR UPDATE OR DELETE ON scheduling_node
    FOR EACH ROW EXECUTE FUNCTION scheduling_note_node();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON scheduling_nodechange
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE scheduling_node ENABLE ALWAYS TRIGGER note_node;
ALTER TABLE scheduling_nodechange ENABLE ALWAYS TRIGGER append_only;
"""
# From now on; what they were before nobody wrote down.
GONE = """
UPDATE scheduling_node SET gone_at = state_since WHERE state_reason = 'it is no longer in the cluster';
"""
NOW = """
INSERT INTO scheduling_nodechange (cluster_id, node_id, name, generation_id, gpus, state, failed_gpus, others_gpus, at)
SELECT node.cluster_id, node.id, node.name, node.generation_id,
       CASE WHEN node.gone_at IS NULL AND cluster.detached_at IS NULL THEN node.gpus ELSE 0 END,
       node.state, node.failed_gpus, node.others_gpus, clock_timestamp()
  FROM scheduling_node node JOIN scheduling_cluster cluster ON cluster.id = node.cluster_id;
"""
UNDO = """
DROP TRIGGER note_node ON scheduling_node;
DROP FUNCTION scheduling_note_node();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounting", "0004_ledger_by_month"),
        ("scheduling", "0025_bare_pods"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="gone_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="NodeChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node_id", models.BigIntegerField()),
                ("name", models.CharField(max_length=253)),
                ("gpus", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ready", "Ready"),
                            ("drained", "Drained"),
                            ("closed", "Closed"),
                            ("down", "Down"),
                        ],
                        max_length=10,
                    ),
                ),
                ("failed_gpus", models.PositiveIntegerField()),
                ("others_gpus", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="scheduling.cluster"
                    ),
                ),
                (
                    "generation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounting.generation"
                    ),
                ),
            ],
            options={
                "ordering": ["at", "id"],
                "indexes": [models.Index(fields=["cluster", "node_id", "at"], name="changes_of_node")],
            },
        ),
        migrations.RunSQL(GONE, migrations.RunSQL.noop),
        migrations.RunSQL(NOW, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, UNDO),
    ]
