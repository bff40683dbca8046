"""`manage.py declare_gpus`: declares a node for the GPUs that this machine's driver reports."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.core.errors import Refused
from scheduling.backends.local.gpus import NvmlError
from scheduling.clusters.discovery import declare_local_gpus
from scheduling.models import Cluster


class Command(BaseCommand):
    help = (
        "Declares this machine's GPUs as nodes of a local cluster. Running the command again changes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("cluster", help="Name of the local cluster.")

    def handle(self, *args: Any, cluster: str, **options: Any) -> None:
        found = Cluster.objects.filter(name=cluster, backend=Cluster.Backend.LOCAL).first()
        if found is None:
            raise CommandError(f"There is no local cluster {cluster}.")
        try:
            nodes = declare_local_gpus(actor=None, cluster=found)
        except (NvmlError, Refused) as error:
            raise CommandError(str(error)) from None
        if not nodes:
            raise CommandError("This machine has no NVIDIA driver or no GPU.")
        for node in nodes:
            self.stdout.write(f"{node.name}: {node.gpus} × {node.generation}")
