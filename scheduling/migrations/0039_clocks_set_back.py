"""What a clock that was ahead, and set back, has left behind: gangs within closed hours, changes of nodes out of order.

And trades that run on clusters that are detached; these end where they began, as nothing was booked of them.

What is held within closed hours cannot be billed any more, so such gangs hold their GPUs from their end on. Of a node
the last change that was written is what it is, so none is of an earlier time than one that was written before it.
"""

from django.db import migrations

LEASES = """
WITH mended AS (
    UPDATE scheduling_lease lease
       SET held_from = CASE WHEN billed_until IS NULL THEN book.until ELSE held_from END,
           running_from = CASE WHEN billed_until IS NULL AND running_from < book.until THEN book.until
                               ELSE running_from END,
           billed_until = CASE WHEN billed_until IS NOT NULL THEN book.until END
      FROM accounting_closedbook book
     WHERE book.book = lease.cluster_id AND lease.state IN ('starting', 'running', 'stopping')
       AND coalesce(lease.billed_until, lease.held_from) < book.until
    RETURNING lease.id, lease.held_from)
UPDATE scheduling_heldgpu gpu SET during = tstzrange(mended.held_from, upper(gpu.during), '[)')
  FROM mended WHERE gpu.lease_id = mended.id;
"""
# Not of imported clusters, which are local ones that are no more: of their nodes the past was written last.
CHANGES = """
ALTER TABLE scheduling_nodechange DISABLE TRIGGER append_only;
UPDATE scheduling_nodechange change SET at = ordered.at
  FROM (SELECT id, max(at) OVER (PARTITION BY cluster_id, node_id ORDER BY id) AS at
          FROM scheduling_nodechange) ordered
 WHERE ordered.id = change.id AND ordered.at > change.at
   AND change.cluster_id NOT IN (
       SELECT id FROM scheduling_cluster WHERE backend = 'local' AND detached_at IS NOT NULL);
ALTER TABLE scheduling_nodechange ENABLE ALWAYS TRIGGER append_only;
"""
TRADES = """
UPDATE scheduling_trade trade SET ends = begins
  FROM scheduling_round round JOIN scheduling_cluster cluster ON cluster.id = round.cluster_id
 WHERE round.id = trade.round_id AND trade.ends IS NULL AND cluster.detached_at IS NOT NULL;
"""
MOMENT = """
CREATE FUNCTION scheduling_moment_of_change(of_cluster bigint, of_node bigint) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT greatest(clock_timestamp(), max(at)) FROM scheduling_nodechange
     WHERE cluster_id = of_cluster AND node_id = of_node
$$;
"""
NOTE = """
CREATE OR REPLACE FUNCTION scheduling_note_node() RETURNS trigger LANGUAGE plpgsql AS $$
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
        node.state, node.failed_gpus, node.others_gpus, {moment}
    );
    RETURN NULL;
END $$;
"""
NOTE_IN_ORDER = NOTE.replace("{moment}", "scheduling_moment_of_change(node.cluster_id, node.id)")
UNDO = NOTE.replace("{moment}", "clock_timestamp()") + """
DROP FUNCTION scheduling_moment_of_change(bigint, bigint);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounting", "0020_seals_of_sums"),
        ("scheduling", "0038_indexes_by_team"),
    ]

    operations = [
        migrations.RunSQL(LEASES, migrations.RunSQL.noop),
        migrations.RunSQL(CHANGES, migrations.RunSQL.noop),
        migrations.RunSQL(TRADES, migrations.RunSQL.noop),
        migrations.RunSQL(MOMENT + NOTE_IN_ORDER, UNDO),
    ]
