"""The form for an advance reservation."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils import timezone

from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Generation, Tenant
from portal.forms.fields import Moment, Row, Several, Switch, Text, Whole
from portal.forms.form import Form, Values
from scheduling.advance.proposals import Terms
from scheduling.models import AdvanceReservation, Cluster, Node


class ReservationForm(Form):
    """The form for an advance reservation: for whom, which GPUs, and when."""

    name = Text("Name", maxlength=100, help_text="What it is for, such as “Deep learning course”.")
    team = Row(
        "Team",
        Tenant.objects.active(),
        help_text="Its jobs, and those of teams below it, have the GPUs first.",
    )
    cluster = Row("Cluster", Cluster.objects.attached().order_by(*by_name("name")))
    generation = Row("GPU type", Generation.objects.all())
    gpus = Whole(
        "Number of GPUs",
        required=False,
        help_text="Fairlot chooses the nodes. Empty: all GPUs of the nodes below.",
    )
    nodes = Several("Nodes", help_text="Instead of a number: all GPUs of these nodes.")
    begins = Moment("Begins", required=True)
    ends = Moment("Ends", required=True)
    weekly_until = Moment("Repeats weekly until", help_text="Empty: only once. At most a year.")
    lends = Switch(
        "Lend GPUs that the team leaves",
        initial=True,
        help_text="Other jobs may run there. They are stopped as soon as a job of the team needs the GPUs.",
    )

    def __init__(self, request: HttpRequest | None = None, *, of: AdvanceReservation | None = None) -> None:
        initial = {}
        if of is not None:
            same = ("name", "begins", "ends", "weekly_until", "lends", "generation", "cluster")
            initial = {name: getattr(of, name) for name in same} | {"team": of.tenant, "gpus": of.gpus}
        super().__init__("change" if of else "create", request, initial=initial)
        if of is not None:
            del self.fields["cluster"]
        clusters = Cluster.objects.attached() if of is None else Cluster.objects.filter(pk=of.cluster_id)
        nodes = Node.objects.present().filter(cluster__in=clusters).select_related("generation", "cluster")
        many = clusters.count() > 1
        self.offer(
            "nodes",
            [
                (
                    str(one.pk),
                    f"{one.name}: {one.gpus} × {one.generation.name}{f' in {one.cluster.name}' if many else ''}",
                )
                for one in nodes.order_by(*by_name("name"))
            ],
        )
        if of is None:
            self.offer("cluster", clusters.order_by(*by_name("name")))
        self.offer("team", Tenant.objects.active().order_by(*by_name("name")))
        self.offer(
            "generation", Generation.objects.filter(nodes__in=nodes).order_by(*by_name("name")).distinct()
        )

    def clean_nodes(self) -> list[Node]:
        keys = [key for text in self.cleaned_data["nodes"] if (key := read_key(text))]
        return list(Node.objects.present().filter(pk__in=keys).order_by(*by_name("name")))


def terms_of(values: Values) -> Terms:
    """Returns the terms that the values of a ReservationForm describe. Weekly windows keep the reader's hours."""
    return Terms(
        name=" ".join(values["name"].split()),
        tenant=values["team"],
        generation=values["generation"],
        begins=values["begins"],
        ends=values["ends"],
        gpus=values["gpus"],
        nodes=tuple(values["nodes"]),
        weekly_until=values["weekly_until"],
        zone=timezone.get_current_timezone_name(),
        lends=values["lends"],
    )
