"""Forms for attaching clusters, for the settings of Kubernetes clusters, and for volumes."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest
from django.utils.safestring import mark_safe

from accounting.core.name_order import by_name
from accounting.models import Tenant
from portal.forms.fields import Choice, Measure, Row, SecretInput, Switch, Text, Whole
from portal.forms.form import Form
from scheduling.backends.kubernetes.kubeconfig import MOST_CHARACTERS
from scheduling.backends.kubernetes.metrics import USUAL_QUERY
from scheduling.clusters import isolation
from scheduling.models import Cluster


class KubeconfigForm(Form):
    """A form for a kubeconfig, pasted as text or uploaded as a file.

    A page never shows a posted kubeconfig again, even if the form is refused, because a kubeconfig contains
    credentials.
    """

    kubeconfig = Text(
        "Kubeconfig",
        rows=6,
        required=False,
        widget=SecretInput,
        placeholder="apiVersion: v1 …",
        is_code=True,
        css="code",
        help_text="The kubeconfig must contain its token or certificate; references to files or "
        "programs are refused. Fairlot stores the kubeconfig encrypted and never shows it again.",
    )
    file = forms.FileField(
        label="Or upload the kubeconfig file", required=False, allow_empty_file=True, widget=forms.FileInput
    )

    def clean(self) -> None:
        """Uses the uploaded file as the kubeconfig, if a file was sent."""
        file = self.cleaned_data.pop("file", None)
        if file is None:
            return
        if file.size is None or file.size > MOST_CHARACTERS:
            self.refuse(
                f"This kubeconfig file is too large. Upload a file of at most {MOST_CHARACTERS // 1024} KiB.",
                "kubeconfig",
            )
            return
        try:
            self.cleaned_data["kubeconfig"] = bytes(file.read()).decode()
        except UnicodeDecodeError:
            self.refuse("This file is not UTF-8 text. Upload a kubeconfig in YAML.", "kubeconfig")


class AttachForm(KubeconfigForm):
    """The form that attaches a cluster."""

    name = Text(
        "Name",
        maxlength=63,
        help_text="Users choose the cluster by this name. To reattach a detached cluster, enter its old name.",
    )
    namespace_prefix = Text(
        "Namespace prefix",
        maxlength=40,
        initial="fairlot",
        required=False,
        help_text="Each team gets a namespace with this prefix, such as fairlot-7.",
    )
    checkpoint_claim = Text(
        "PersistentVolumeClaim for checkpoints",
        maxlength=253,
        required=False,
        help_text="Name of a ReadWriteMany PersistentVolumeClaim in each team's namespace. Without "
        "one, suspended jobs start again from the beginning.",
    )
    writes_per_second = Measure("Maximum writes to the Kubernetes API per second", initial=50)
    writes_at_once = Whole("Maximum writes to the Kubernetes API in a burst", initial=100)


class ReachableForm(Form):
    """The form for a cluster's reachable networks: the address ranges outside a team's namespace to which the team's
    jobs may connect."""

    ranges = Text(
        "Address ranges",
        rows=3,
        required=False,
        spellcheck="false",
        autocapitalize="off",
        placeholder="10.20.0.0/16",
        help_text="Addresses that jobs may reach: one CIDR range per line. 0.0.0.0/0 allows all IPv4 "
        "addresses. Leave empty to allow no addresses.",
    )


class BarePodsForm(Form):
    """The form for the setting that new jobs with only one worker run as bare pods, without a Kubernetes Job."""

    bare_pods = Switch("Run new single-worker jobs as bare pods")


class MetricsForm(Form):
    """The form for the Prometheus server that collects the GPU utilisation of a cluster."""

    url = Text(
        "Address",
        required=False,
        type="url",
        maxlength=500,
        placeholder="https://prometheus.example.org",
        help_text="URL of the Prometheus server. Leave empty to collect no metrics.",
    )
    query = Text(
        "Query",
        rows=3,
        required=False,
        maxlength=1000,
        spellcheck="false",
        autocapitalize="off",
        placeholder=USUAL_QUERY,
        help_text=mark_safe(
            "PromQL query that returns the GPU utilisation in percent by <code>namespace</code> "
            "and <code>pod</code>. Fairlot replaces <code>$window</code> by a time range, such "
            "as <code>60s</code>. Leave empty to use the default query."
        ),
    )


class VolumeForm(Form):
    """The form that grants a volume: it allows jobs of one team, or of all teams, to mount the volume."""

    name = Text("Name", maxlength=63, placeholder="imagenet", is_code=True)
    source = Text("PersistentVolumeClaim", maxlength=400, is_code=True)
    team = Row(
        "May be mounted by",
        Tenant.objects.active().order_by(*by_name("name")),
        required=False,
        others={"": "all teams"},
    )
    read_only = Choice("Access", [("on", "read"), ("off", "read and write")])

    def __init__(self, cluster: Cluster, request: HttpRequest | None = None) -> None:
        super().__init__("volume", request)
        if cluster.backend == Cluster.Backend.LOCAL:
            self.fields["source"].label = "Path of a folder on Fairlot's machine"
            kept_apart = isolation.isolation_in(cluster)
            if not (kept_apart and kept_apart.namespaces):
                self.fields["read_only"].widget.choices = [("off", "read and write")]
