import datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0069_plain_labels'),
    ]

    operations = [
        migrations.AlterField(
            model_name='cluster',
            name='slicing',
            field=models.CharField(choices=[('checkpoint', 'Save a checkpoint and exit, resume later'), ('freeze', 'Freeze processes, continue later')], default='checkpoint', max_length=12),
        ),
        migrations.AlterField(
            model_name='finishtime',
            name='seconds',
            field=models.FloatField(help_text="Seconds from the job's submission to its end."),
        ),
        migrations.AlterField(
            model_name='gpuuse',
            name='idle_for',
            field=models.DurationField(help_text='How long the job has held idle GPUs since `idle_since`, over all attempts.'),
        ),
        migrations.AlterField(
            model_name='gpuuse',
            name='idle_warned',
            field=models.DurationField(default=datetime.timedelta, help_text='How much of `idle_for` came after the last warning.'),
        ),
        migrations.AlterField(
            model_name='idlerule',
            name='action',
            field=models.CharField(choices=[('nothing', 'do nothing'), ('warn', 'warn'), ('preemptible', 'warn, then make the job preemptible'), ('stop', 'warn, then stop the job')], max_length=12),
        ),
        migrations.AlterField(
            model_name='idlerule',
            name='after_minutes',
            field=models.PositiveIntegerField(help_text="A warning is sent when a job's GPUs were idle for this many minutes."),
        ),
        migrations.AlterField(
            model_name='idlerule',
            name='grace_minutes',
            field=models.PositiveIntegerField(help_text='The action follows when the GPUs were idle for this many minutes since the warning.'),
        ),
        migrations.AlterField(
            model_name='job',
            name='reason',
            field=models.PositiveSmallIntegerField(default=0, help_text='Why the job waits: a value of fairshare.Reason.'),
        ),
        migrations.AlterField(
            model_name='schedule',
            name='overlap',
            field=models.CharField(choices=[('allow', 'Start the new run while the earlier one continues'), ('forbid', 'Skip the new run'), ('replace', 'Cancel the earlier run and start the new one')], default='forbid', max_length=7),
        ),
        migrations.AlterField(
            model_name='session',
            name='idle_minutes',
            field=models.PositiveIntegerField(help_text='The running session is stopped when nobody has used it for this many minutes.'),
        ),
        migrations.AlterField(
            model_name='session',
            name='longest_hours',
            field=models.PositiveIntegerField(help_text='The session is stopped this many hours after its first start.'),
        ),
        migrations.AlterField(
            model_name='sharinganomaly',
            name='cause',
            field=models.CharField(choices=[('over_borrowing', 'Other teams borrowed too much'), ('fragmentation', 'Free GPUs were scattered over nodes'), ('reservation', 'GPUs were kept for another gang'), ('priority', 'Other jobs of the team went first'), ('failure', 'Failed starts'), ('quota', 'Limit used up'), ('pause', 'Cluster paused'), ('slower_gpus', 'Ran on slower GPUs'), ('switching', 'Stopped and started too often'), ('lost_work', 'Work was lost and done again'), ('idle_limit', 'Job preemptible because of a limit'), ('hardware', 'Nodes down or drained'), ('unexplained', 'Unexplained')], max_length=20),
        ),
    ]
