from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0020_sessions'),
    ]

    operations = [
        migrations.AddField(
            model_name='lease',
            name='missing_since',
            field=models.DateTimeField(null=True),
        ),
    ]
