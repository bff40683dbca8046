"""Nothing ever read or wrote a waiting job's `reason_detail`: reasons are told from the round's record."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0002_faster_looks")]

    operations = [migrations.RemoveField(model_name="job", name="reason_detail")]
