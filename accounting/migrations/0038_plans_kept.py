"""The checks of bookings keep their query plans: planning them anew took longer than running them.

PostgreSQL would plan each call anew, because a plan for known months names fewer partitions. A kept plan finds its
partitions when it starts.
"""

from django.db import migrations

CHECKS = (
    "accounting_told(accounting_ledgertransaction)",
    "accounting_told_without_classes(accounting_ledgertransaction)",
    "accounting_open_booking(bigint, date)",
    "accounting_check_vouchers()",
    "accounting_check_charges()",
    "accounting_check_entries()",
    "accounting_check_closed()",
)


class Migration(migrations.Migration):
    dependencies = [("accounting", "0037_clearer_texts")]

    operations = [
        migrations.RunSQL(
            [f"ALTER FUNCTION {check} SET plan_cache_mode = force_generic_plan" for check in CHECKS],
            [f"ALTER FUNCTION {check} RESET plan_cache_mode" for check in CHECKS],
        )
    ]
