from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0039_clocks_set_back'),
    ]

    operations = [
        migrations.AlterField(
            model_name='sharinganomaly',
            name='cause',
            field=models.CharField(choices=[('over_borrowing', 'Others borrowed too much'), ('fragmentation', 'Free GPUs were scattered'), ('reservation', 'GPUs were kept for another gang'), ('priority', 'Own other jobs went first'), ('failure', 'Failed starts'), ('quota', 'Quota used up'), ('pause', 'Cluster paused'), ('slower_gpus', 'Ran on slower GPUs'), ('switching', 'Stopped and started too often'), ('lost_work', 'Work was lost and done again'), ('idle_limit', 'A limit left it to idle GPUs'), ('hardware', 'Nodes down or drained'), ('unexplained', 'Unexplained')], max_length=20),
        ),
    ]
