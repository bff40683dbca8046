"""Forms for nodes, and for the scheduling settings of a cluster."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.forms import BoundField, RadioSelect
from django.http import HttpRequest

from accounting.core.wording import duration
from accounting.models import Generation
from portal.forms.fields import Choice, Measure, Moment, Percentage, Row, Switch, Text, Whole
from portal.forms.form import Form
from scheduling.clusters import actions as clusters
from scheduling.draining.actions import DrainMode
from scheduling.models import Cluster

SECONDS = ("quantum_seconds", "min_hold_seconds", "notice_seconds")
OF_WORKERS = ("cpu_per_gpu", "memory_per_gpu", "cpu_limit_per_gpu", "memory_limit_per_gpu")


class Reason(Text):
    """A form field for a required text of 1 to 200 characters that gives the reason for an operator's action."""

    def __init__(self, help_text: str) -> None:
        super().__init__("Why?", maxlength=200, help_text=help_text)

    def to_python(self, value: str | None) -> str:
        reason = super().to_python(value)
        if not reason or len(reason) > 200:
            raise ValidationError("Give a reason of 1 to 200 characters.")
        return reason


class PauseForm(Form):
    """The form that pauses a cluster. It asks for the reason."""

    reason = Reason("This reason is shown to the owners of waiting jobs.")


class DrainForm(Form):
    """The form that drains a node: mode, deadline and reason."""

    reason = Reason("This reason is shown on the node and to the owners of its jobs.")
    mode = Choice(
        "Running jobs",
        DrainMode.choices,
        initial=DrainMode.FINISH,
        widget=RadioSelect,
        help_text="A stopped job can save a checkpoint in its grace period. It then waits in the "
        "queue until other nodes have room for it.",
    )
    deadline = Moment(
        "Deadline",
        help_text="Time at which running jobs are stopped. Needed only for “Let running jobs continue "
        "until a deadline”.",
    )

    def clean(self) -> None:
        """Discards the deadline unless the mode is “until a deadline”."""
        mode = self.cleaned_data["mode"] = self.cleaned_data.get("mode") or DrainMode.FINISH
        if mode != DrainMode.DEADLINE:
            self.cleaned_data["deadline"] = None


class DeclareForm(Form):
    """The form that declares a node of simulated GPUs."""

    name = Text("Simulated node")
    generation = Row("GPU", Generation.objects.all())
    gpus = Whole(f"Number of GPUs, 1 to {clusters.MOST_GPUS}", initial=4)
    virtual_speed = Measure("Speed", initial=1)


class SchedulingForm(Form):
    """The form for the scheduling settings of a cluster. A setting that is missing in the request keeps its value."""

    ordering = Choice(
        "Ordering",
        Cluster.Ordering.choices,
        widget=RadioSelect,
        help_text="How Fairlot chooses the next gangs if not all gangs fit on the GPUs. Stride and "
        "lottery are both fair over time. A lottery can be reproduced from its stored seed.",
    )
    slicing = Choice(
        "Time slicing",
        Cluster.Slicing.choices,
        widget=RadioSelect,
        help_text="What happens to a suspended gang: it saves a checkpoint and exits, or it is frozen "
        "and keeps its memory. A job has a checkpoint pattern if its specification has one.",
    )
    quantum_seconds = Measure("Quantum, seconds")
    min_hold_seconds = Measure(
        "Minimum time before suspension, seconds", help_text="A gang keeps its GPUs at least this long."
    )
    notice_seconds = Measure(
        "Suspension notice, seconds",
        help_text="A service replica or session is warned this many seconds before it is suspended.",
    )
    overhead_limit = Percentage("Highest allowed switching overhead, %")
    cpu_per_gpu = Measure("Default CPUs per GPU", required=False)
    memory_per_gpu = Measure("Default memory per GPU, GiB", required=False)
    cpu_limit_per_gpu = Measure("Maximum CPUs requested per GPU", required=False)
    memory_limit_per_gpu = Measure("Maximum memory requested per GPU, GiB", required=False)
    trading = Switch("Trade GPU time between GPU types")

    def __init__(self, cluster: Cluster, request: HttpRequest | None = None) -> None:
        initial = {name: getattr(cluster, name) for name in self.base_fields}
        super().__init__(f"settings-{cluster.pk}", request, initial=initial)
        self.fields["quantum_seconds"].help_text = (
            "Time between two scheduling rounds. Fairlot lengthens the quantum if switching jobs is "
            f"slow. The quantum is {duration(cluster.effective_quantum)} now."
        )
        self.fields["overhead_limit"].help_text = (
            "Fairlot lengthens the quantum so that switching jobs takes at most this part of the "
            f"time. At present, one switch takes {cluster.switch_seconds:.1f} s."
        )
        for name in ("notice_seconds", *OF_WORKERS):
            if self.is_bound and name not in self.data:
                del self.fields[name]
        if (
            cluster.backend == Cluster.Backend.LOCAL
        ):  # the page does not show these, nor what is wrong with them
            for name in OF_WORKERS:
                self.fields.pop(name, None)

    def clean_overhead_limit(self) -> float:
        return float(self.cleaned_data["overhead_limit"])

    @property
    def about_time(self) -> list[BoundField]:
        return [self[name] for name in (*SECONDS, "overhead_limit") if name in self.fields]

    @property
    def about_workers(self) -> list[BoundField]:
        return [self[name] for name in OF_WORKERS if name in self.fields]
