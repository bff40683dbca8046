import datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0068_codes_of_service_events_and_runs'),
    ]

    operations = [
        migrations.AlterField(
            model_name='cluster',
            name='slicing',
            field=models.CharField(choices=[('checkpoint', 'Checkpoint, exit and resume'), ('freeze', 'Freeze processes, continue later')], default='checkpoint', max_length=12),
        ),
        migrations.AlterField(
            model_name='gpuuse',
            name='first_told_at',
            field=models.DateTimeField(help_text='When the owner was first warned or first snoozed.', null=True),
        ),
        migrations.AlterField(
            model_name='gpuuse',
            name='idle_warned',
            field=models.DurationField(default=datetime.timedelta, help_text='Time in `idle_for` that came after the last warning.'),
        ),
        migrations.AlterField(
            model_name='gpuuse',
            name='percent',
            field=models.FloatField(help_text="Measured use of the job's GPUs in percent; if they report none, CPU use in percent of one CPU."),
        ),
        migrations.AlterField(
            model_name='sharinganomaly',
            name='cause',
            field=models.CharField(choices=[('over_borrowing', 'Others borrowed too much'), ('fragmentation', 'Free GPUs were scattered'), ('reservation', 'GPUs were kept for another gang'), ('priority', 'Other jobs of the team went first'), ('failure', 'Failed starts'), ('quota', 'Limit used up'), ('pause', 'Cluster paused'), ('slower_gpus', 'Ran on slower GPUs'), ('switching', 'Stopped and started too often'), ('lost_work', 'Work was lost and done again'), ('idle_limit', 'Job preemptible because of a limit'), ('hardware', 'Nodes down or drained'), ('unexplained', 'Unexplained')], max_length=20),
        ),
        migrations.AlterField(
            model_name='tradelimit',
            name='most_gpus',
            field=models.DecimalField(blank=True, decimal_places=3, help_text='Maximum GPUs that the team gives away in trades at the same time.', max_digits=9, null=True),
        ),
        migrations.AlterField(
            model_name='tradelimit',
            name='most_part',
            field=models.DecimalField(blank=True, decimal_places=4, help_text='Maximum GPUs that the team gives away in trades, as a fraction of its entitlement.', max_digits=5, null=True),
        ),
    ]
