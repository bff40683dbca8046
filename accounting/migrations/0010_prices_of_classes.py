"""Prices of classes of held time: settled in closed hours by vouchers of their own, the class charges."""

import django.db.models.deletion
from django.db import migrations, models

PRICED_UNTIL = """
ALTER TABLE accounting_closedbook ADD COLUMN priced_until timestamptz;
UPDATE accounting_closedbook SET priced_until = until;
ALTER TABLE accounting_closedbook ALTER COLUMN priced_until SET NOT NULL;
"""

CHARGES = """
CREATE TABLE accounting_classcharge (
    segment_id bigint NOT NULL,
    month date NOT NULL,
    transaction_id bigint NOT NULL,
    idle numeric(24, 6) NOT NULL CHECK (idle >= 0),
    idle_price numeric(12, 6) NOT NULL CHECK (idle_price >= 0),
    preemptible numeric(24, 6) NOT NULL CHECK (preemptible >= 0),
    preemptible_price numeric(12, 6) NOT NULL CHECK (preemptible_price >= 0),
    borrowed numeric(24, 6) NOT NULL CHECK (borrowed >= 0),
    borrowed_price numeric(12, 6) NOT NULL CHECK (borrowed_price >= 0),
    amount numeric(24, 6) NOT NULL CONSTRAINT a_charge_is_not_zero CHECK (amount <> 0),
    PRIMARY KEY (segment_id, month)
) PARTITION BY LIST (month);
CREATE INDEX charges_of_transaction ON accounting_classcharge (transaction_id);

CREATE FUNCTION accounting_check_charges() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    booked accounting_ledgertransaction;
    voucher record;
BEGIN
    FOR voucher IN SELECT DISTINCT transaction_id, month FROM inserted LOOP
        booked := accounting_open_booking(voucher.transaction_id, voucher.month);
        IF booked.kind NOT IN ('pricing', 'usage') OR EXISTS (
            SELECT FROM accounting_ledgerentry entry
            WHERE entry.transaction_id = booked.id AND entry.month = booked.month
        ) THEN
            RAISE EXCEPTION 'ledger transaction % is closed, or of another kind', booked.id
                USING ERRCODE = 'integrity_constraint_violation', HINT = 'Vouchers come before entries.';
        END IF;
        IF EXISTS (
            SELECT FROM inserted charge
            LEFT JOIN accounting_usagesegment segment
                ON segment.id = charge.segment_id AND segment.month = charge.month
            LEFT JOIN accounting_closedbook closed ON closed.book = segment.book
            WHERE charge.transaction_id = booked.id AND charge.month = booked.month AND (
                segment.book = booked.book AND segment.period <@ booked.period
                -- What is priced is closed and stands; what is booked anew brings its charge along.
                AND CASE booked.kind
                    WHEN 'usage' THEN segment.transaction_id = booked.id
                    ELSE lower(segment.period) >= closed.since AND lower(segment.period) < closed.until
                        AND NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                                        WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
                END
                AND charge.idle <= segment.idle
                AND charge.idle + charge.preemptible + charge.borrowed <= segment.gpu_seconds
                -- Segment and charge together cost what each class costs, rounded once.
                AND segment.cost + charge.amount >= 0
                AND abs((segment.cost + charge.amount) * 3600
                        - charge.idle * charge.idle_price - charge.preemptible * charge.preemptible_price
                        - charge.borrowed * charge.borrowed_price
                        - (segment.gpu_seconds - charge.idle - charge.preemptible - charge.borrowed)
                            * segment.price_per_gpu_hour) <= 0.00005 * 3600
            ) IS NOT TRUE
        ) THEN
            RAISE EXCEPTION 'ledger transaction % charges what its segments do not say', booked.key
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION accounting_guard_ledger_table(part regclass, parent text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    checked text := (jsonb_build_object(
        'accounting_ledgerentry', 'accounting_check_entries',
        'accounting_usagesegment', 'accounting_check_vouchers',
        'accounting_correctedsegment', 'accounting_check_vouchers',
        'accounting_capacitysegment', 'accounting_check_vouchers',
        'accounting_classcharge', 'accounting_check_charges'
    ) ->> parent);
BEGIN
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %s
        FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change()', part);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER append_only', part);
    IF checked IS NOT NULL THEN
        EXECUTE format('CREATE TRIGGER check_rows AFTER INSERT ON %s REFERENCING NEW TABLE AS inserted
            FOR EACH STATEMENT EXECUTE FUNCTION %I()', part, checked);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER check_rows', part);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION accounting_add_month(month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part text;
BEGIN
    IF month <> date_trunc('month', month) THEN
        RAISE EXCEPTION '% is not the first day of a month', month;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('accounting_add_month'));
    IF month < (SELECT max(details_since) AT TIME ZONE 'UTC' FROM accounting_closedbook)::date
       AND to_regclass(quote_ident('accounting_usagesegment' || to_char(month, '_YYYY_MM'))) IS NULL THEN
        RAISE EXCEPTION 'the vouchers of % are archived', to_char(month, 'YYYY-MM')
            USING ERRCODE = 'integrity_constraint_violation', HINT = 'Bring them back first: manage.py archive_ledger.';
    END IF;
    FOREACH parent IN ARRAY ARRAY[
        'accounting_ledgertransaction', 'accounting_ledgerentry', 'accounting_usagesegment',
        'accounting_correctedsegment', 'accounting_capacitysegment', 'accounting_classcharge', 'accounting_nodehour',
        'accounting_usagehour', 'accounting_usageday', 'accounting_jobday'
    ] LOOP
        part := parent || to_char(month, '_YYYY_MM');
        CONTINUE WHEN to_regclass(quote_ident(part)) IS NOT NULL;
        -- Attached when it is there: that keeps nobody from writing to the other months meanwhile.
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES IN (%L)', parent, part, month);
        PERFORM accounting_guard_ledger_table(part::regclass, parent);
    END LOOP;
END $$;

-- What the entries must be: what the vouchers of 0004 say, and what class charges change of it. Who takes a segment
-- back takes its charge back, too.
ALTER FUNCTION accounting_told(accounting_ledgertransaction) RENAME TO accounting_told_without_classes;
CREATE FUNCTION accounting_told(booked accounting_ledgertransaction)
RETURNS TABLE (kind text, unit text, generation_id bigint, tenant_id bigint, user_id bigint, amount numeric)
LANGUAGE sql STABLE AS $$
    WITH charge AS MATERIALIZED (
        SELECT charge.segment_id, charge.month, charge.amount,
               CASE booked.kind WHEN 'pricing' THEN 'classes' ELSE 'waived' END AS from_whom
        FROM accounting_classcharge charge
        WHERE charge.transaction_id = booked.id AND charge.month = booked.month
        UNION ALL
        SELECT charge.segment_id, charge.month, -charge.amount, 'waived'
        FROM accounting_correctedsegment corrected
        CROSS JOIN LATERAL (
            SELECT * FROM accounting_classcharge
            WHERE segment_id = corrected.segment_id AND month = corrected.month OFFSET 0
        ) charge
        WHERE corrected.transaction_id = booked.id AND corrected.month = booked.month
    ), told AS (
        SELECT * FROM accounting_told_without_classes(booked)
        UNION ALL
        SELECT line.kind, segment.currency, NULL, line.tenant_id, line.user_id, line.amount
        FROM charge
        CROSS JOIN LATERAL (
            SELECT * FROM accounting_usagesegment WHERE id = charge.segment_id AND month = charge.month OFFSET 0
        ) segment
        CROSS JOIN LATERAL (VALUES
            ('cost', segment.tenant_id, segment.user_id, charge.amount),
            (charge.from_whom, NULL, NULL, -charge.amount)
        ) line (kind, tenant_id, user_id, amount)
    )
    SELECT kind, unit, generation_id, tenant_id, user_id, sum(amount)
    FROM told AS amounts (kind, unit, generation_id, tenant_id, user_id, amount)
    GROUP BY 1, 2, 3, 4, 5 HAVING sum(amount) <> 0
$$;
"""

FUNCTIONS = (
    "accounting_check_charges()",
    "accounting_guard_ledger_table(regclass, text)",
    "accounting_add_month(date)",
    "accounting_told(accounting_ledgertransaction)",
)
# Names are looked up where the tables are, never in a temporary schema that would shadow them.
FIXED_SEARCH_PATH = "\n".join(
    f"""DO $$ BEGIN
        EXECUTE format('ALTER FUNCTION {function} SET search_path = %I, pg_temp', current_schema());
    END $$;"""
    for function in FUNCTIONS
)

# The table's own guards, and a partition for each month that there is.
MONTHS = """
SELECT accounting_guard_ledger_table('accounting_classcharge'::regclass, 'accounting_classcharge');
SELECT accounting_add_month(to_date(right(part.inhrelid::regclass::text, 7), 'YYYY_MM'))
FROM pg_inherits part WHERE part.inhparent = 'accounting_usagesegment'::regclass;
"""

UNHELD = ["waived", "free", "others", "drained", "down"]


def amount(**told):
    return models.DecimalField(decimal_places=6, max_digits=24, **told)


def price(**told):
    return models.DecimalField(decimal_places=6, max_digits=12, **told)


class Migration(migrations.Migration):
    dependencies = [("accounting", "0009_statements")]

    operations = [
        migrations.RemoveConstraint("LedgerAccount", "an_account_has_the_parties_of_its_kind"),
        migrations.RemoveConstraint("LedgerAccount", "an_account_has_the_unit_of_its_kind"),
        migrations.AlterField(
            "LedgerAccount",
            "kind",
            models.CharField(
                choices=[
                    ("usage", "GPU time used"),
                    ("installed", "GPU time that there was"),
                    ("capacity", "GPU time provided"),
                    ("cost", "Cost of GPU time"),
                    ("revenue", "Charged for GPU time"),
                    ("waived", "Taken back"),
                    ("free", "Free"),
                    ("others", "Used by others than Fairlot"),
                    ("drained", "Drained"),
                    ("down", "Down"),
                    ("classes", "Prices of classes"),
                    ("rounding", "Rounding"),
                    ("trade", "Entitlement traded"),
                ],
                max_length=10,
            ),
        ),
        migrations.AlterField(
            "LedgerTransaction",
            "kind",
            models.CharField(
                choices=[
                    ("usage", "Usage"),
                    ("trade", "Trade"),
                    ("correction", "Correction"),
                    ("closing", "Closing"),
                    ("pricing", "Prices of classes"),
                ],
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            "LedgerAccount",
            models.CheckConstraint(
                name="an_account_has_the_parties_of_its_kind",
                condition=models.Q(kind__in=["usage", "cost"], tenant__isnull=False, user__isnull=False)
                | models.Q(
                    kind__in=["installed", "capacity", "revenue", *UNHELD, "classes", "rounding"],
                    tenant=None,
                    user=None,
                )
                | models.Q(kind="trade", tenant__isnull=False, user=None),
            ),
        ),
        migrations.AddConstraint(
            "LedgerAccount",
            models.CheckConstraint(
                name="an_account_has_the_unit_of_its_kind",
                condition=models.Q(
                    kind__in=["usage", "installed", "capacity", "waived", "trade", *UNHELD[1:]],
                    generation__isnull=False,
                    unit__startswith="GPU-s ",
                )
                | models.Q(
                    kind__in=["cost", "revenue", *UNHELD, "classes", "rounding"],
                    generation=None,
                    unit__regex=r"^[A-Z]{3}$",
                ),
            ),
        ),
        migrations.AddField("Price", "idle", price(blank=True, help_text="Held, and seen not to be used.", null=True)),
        migrations.AddField(
            "Price", "preemptible", price(blank=True, help_text="Held only because nobody else wanted it.", null=True)
        ),
        migrations.AddField(
            "Price", "borrowed", price(blank=True, help_text="Beyond what the team was entitled to.", null=True)
        ),
        migrations.AddConstraint(
            "Price",
            models.CheckConstraint(
                name="prices_of_classes_are_not_negative",
                condition=(models.Q(idle=None) | models.Q(idle__gte=0))
                & (models.Q(preemptible=None) | models.Q(preemptible__gte=0))
                & (models.Q(borrowed=None) | models.Q(borrowed__gte=0)),
            ),
        ),
        migrations.AddField("ClosedBook", "details_since", models.DateTimeField(null=True)),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(PRICED_UNTIL)],
            state_operations=[
                migrations.AddField(
                    "ClosedBook", "priced_until", models.DateTimeField(default=None), preserve_default=False
                )
            ],
        ),
        migrations.AddConstraint(
            "ClosedBook",
            models.CheckConstraint(
                name="only_closed_hours_are_priced",
                condition=models.Q(
                    priced_until__gte=models.F("since"), priced_until__lte=models.F("until")
                ),
            ),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL([CHARGES, FIXED_SEARCH_PATH, MONTHS])],
            state_operations=[
                migrations.CreateModel(
                    name="ClassCharge",
                    fields=[
                        (
                            "segment",
                            models.OneToOneField(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.PROTECT,
                                primary_key=True,
                                related_name="class_charge",
                                serialize=False,
                                to="accounting.usagesegment",
                            ),
                        ),
                        ("month", models.DateField()),
                        ("idle", amount()),
                        ("idle_price", price()),
                        ("preemptible", amount()),
                        ("preemptible_price", price()),
                        ("borrowed", amount()),
                        ("borrowed_price", price()),
                        ("amount", amount()),
                        (
                            "transaction",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.PROTECT,
                                related_name="class_charges",
                                to="accounting.ledgertransaction",
                            ),
                        ),
                    ],
                )
            ],
        ),
    ]
