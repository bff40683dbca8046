from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounting", "0037_mails")]

    operations = [
        migrations.AlterField(
            model_name="archiverecord",
            name="seals",
            field=models.JSONField(
                default=dict,
                help_text="Number of the latest seal that covers this archived month in each book,"
                " keyed by the book's number.",
            ),
        ),
        migrations.AlterField(
            model_name="webhookcall",
            name="nonce",
            field=models.CharField(
                help_text="Random value (nonce) of the budget, copied when this call was stored."
                " The key that signs the call is derived from this value.",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="budgetwarning",
            name="lifted_at",
            field=models.DateTimeField(
                help_text="Time at which a new warning replaced this one; null while this warning is in force.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="budgetwarning",
            name="threshold",
            field=models.CharField(
                help_text="Percentage of the budget at which the warning is sent,"
                " or “forecast” for a warning about the forecast.",
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="ledgeraccount",
            name="kind",
            field=models.CharField(
                choices=[
                    ("usage", "GPU time used"),
                    ("installed", "GPU time of all installed GPUs"),
                    ("capacity", "GPU time provided"),
                    ("cost", "Cost of GPU time"),
                    ("revenue", "Revenue from GPU time"),
                    ("waived", "Taken back"),
                    ("free", "Free"),
                    ("others", "Used outside Fairlot"),
                    ("drained", "Drained"),
                    ("down", "Down"),
                    ("classes", "Price adjustments for idle, preemptible and borrowed time"),
                    ("rounding", "Rounding"),
                    ("trade", "Entitlement traded"),
                ],
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="ledgerseal",
            name="month",
            field=models.DateField(
                help_text="Archived month: the seal was made when this month was archived."
                " Null: the seal covers new rows of the book.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="ledgertransaction",
            name="kind",
            field=models.CharField(
                choices=[
                    ("usage", "Usage"),
                    ("trade", "Trade"),
                    ("correction", "Correction"),
                    ("closing", "Closing"),
                    ("pricing", "Price adjustments for idle, preemptible and borrowed time"),
                ],
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="reportsubscription",
            name="form",
            field=models.CharField(
                choices=[
                    ("pdf", "as PDF"),
                    ("xlsx", "as XLSX"),
                    ("csv", "as CSV"),
                    ("link", "as a link to the report, without a file"),
                ],
                default="pdf",
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="request",
            name="told_of_end",
            field=models.DateTimeField(
                help_text="End of the grant that the last reminder mail stated; null if no such mail was sent.",
                null=True,
            ),
        ),
    ]
