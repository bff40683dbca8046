"""The state of the submit page: the job specification as form and as YAML, the target cluster, and the problems."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db.models import QuerySet, Sum
from django.http import QueryDict

from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.texts import one_line
from accounting.models import Generation, Membership, Tenant, User
from portal.submit.fields import Fields, digest, read_yaml
from portal.submit.imported import Import, only, position_of
from portal.submit.summary import of_job
from portal.submit.uploads import packed_files, sent_as
from portal.user_request import UserRequest
from scheduling.clusters.backend_factory import environments_of
from scheduling.jobs.code import ABOUT, upload_code
from scheduling.jobs.foreign_files import ForeignFile, foreign_files_in
from scheduling.jobs.preflight import Preflight, preflight
from scheduling.jobs.proposals import Proposals, proposals_of
from scheduling.jobs.resources import ONLY_IN_CONTAINERS
from scheduling.models import Cluster, CodeUpload, Secret, Volume
from scheduling.spec.code import DIGEST
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.refused_values import by_top_field

CHANGED_BOTH = (
    "The form and the YAML were both changed. Choose which one counts: “Use the form's values” or “Use the "
    "YAML's values”."
)
SUBMIT_ANYWAY = "Submit anyway"  # the label of a checkbox
NEVER_MEANT = f"This job can never run as it is. Change it, or check “{SUBMIT_ANYWAY}”."
READ_REPORT = "The YAML has been converted from another format. Read the report, and submit the job again."
CHOOSE_WORK = "This text describes more than one job. Choose in the report what to create."
PRESS = "Press its button in the report."
NOT_IMPORTED = "This text cannot be imported. The report says why."
WRITE_OR_USE = "Use {names} as the job's file, or write the command that runs your code."
FILE = "file-"
OF_CODE = ("code_upload", "code_git", "code_ref", "code_folder", "code_secret", "requirements")
EXAMPLE = "digits/train.py"
ADVANCED = (
    "priority", "progress_pattern", "cpu", "memory", "shm", "working_directory", "user_id", "group_id",
    "image_pull_policy", "image_pull_secret", "labels", "preemptible",
    "retry_times", "retry_exit_codes", "retry_backoff_seconds", "checkpoint", "max_workers", "roles",
    "launch",
)  # fmt: skip
FORM_FIELDS = frozenset(Fields.__dataclass_fields__) | {"tenant", "cluster", "code", "retries"}


T = TypeVar("T", Tenant, Cluster)


@dataclass(frozen=True)
class Choices:
    """The choices on the submit page: the teams and clusters to which the user may submit jobs, and the user's secrets.

    They also include what the selected cluster `cluster` offers: GPU types, environments and volumes.
    """

    tenants: Sequence[Tenant]
    clusters: Sequence[Cluster]
    cluster: Cluster | None
    generations: Sequence[tuple[str, int]]  # name, and number of GPUs in `cluster`
    environments: Sequence[str]
    secrets: Sequence[tuple[str, Sequence[str]]]  # name and keys
    volumes: Sequence[Volume]  # volumes of `cluster`
    uploads: QuerySet[CodeUpload]

    @classmethod
    def of(cls, user: User, cluster: str = "") -> Self:
        """Returns the choices of `user`. `cluster` is the key of the selected cluster.

        If the key is empty or unknown, the first cluster is selected.
        """
        clusters = list(Cluster.objects.attached().order_by(*by_name("name")))
        chosen = _chosen(clusters, cluster) or next(iter(clusters), None)
        return cls(
            tenants=list(
                Tenant.objects.visible_to(user, role=Membership.Role.MEMBER)
                .active()
                .order_by(*by_name("name"))
            ),
            clusters=clusters,
            cluster=chosen,
            generations=list(
                Generation.objects.filter(nodes__cluster=chosen, nodes__gpus__gt=0)
                .annotate(gpus=Sum("nodes__gpus"))
                .values_list("name", "gpus")
            ),
            environments=(chosen and environments_of(chosen)) or (),
            secrets=list(Secret.objects.visible_to(user).values_list("name", "keys")),
            volumes=list(
                Volume.objects.visible_to(user).filter(cluster=chosen).select_related("tenant")
                if chosen
                else ()
            ),
            uploads=CodeUpload.objects.visible_to(user).only(*ABOUT),
        )


@dataclass(frozen=True)
class Draft:
    """The content of the submit page while the user edits it. A draft is immutable; its methods return changed copies.

    `problems` maps a field of the form to its problem. `yaml_problems` has the problems of the YAML text.
    """

    fields: Fields
    yaml: str
    tenant: Tenant | None
    cluster: Cluster | None
    request_key: str
    agreed: str = ""
    even_if_never: bool = False
    spec: JobSpec | None = None
    problems: dict[str, str] = field(default_factory=dict)
    yaml_problems: dict[str, str] = field(default_factory=dict)
    preflight: Preflight | None = None
    code_name: str = ""  # under which the upload was sent
    upload_problem: str = ""  # why the files that came with the form are no upload
    proposals: Proposals | None = None  # what the files that came with the form propose
    proposed: tuple[str, ...] = ()  # the fields that were filled in with it
    foreign: str = ""  # the text of another format from which form and YAML were converted
    imported: Import | None = None

    @classmethod
    def new(cls, choices: Choices, *, fields: Fields, tenant: Tenant | None = None) -> Self:
        own = {choice.pk for choice in choices.tenants}
        return cls(
            fields=fields,
            yaml=fields.to_yaml(),
            tenant=tenant if tenant and tenant.pk in own else next(iter(choices.tenants), None),
            cluster=choices.cluster,
            request_key=uuid.uuid4().hex,
        ).agree()

    @classmethod
    def of_stored(cls, choices: Choices, *, spec: Any, tenant: Tenant, user: User) -> Self:
        """Returns a draft filled from a stored job specification.

        If the specification is invalid by the current rules, the draft contains the problems.
        """
        draft = cls.new(choices, fields=Fields.from_spec(JobSpec.stored(spec)), tenant=tenant)
        try:
            JobSpec.parse(spec)
        except SpecError as error:
            return draft.with_problems(error)
        return draft.use_form().checked_for(user)

    @classmethod
    def from_post(cls, post: QueryDict, choices: Choices) -> Self:
        return cls(
            fields=Fields.from_post(post),
            yaml=post.get("yaml", "").replace("\r\n", "\n"),
            tenant=_chosen(choices.tenants, post.get("tenant", "")),
            cluster=_chosen(choices.clusters, post.get("cluster", "")),
            request_key=one_line(post.get("request_key", ""))[:80] or uuid.uuid4().hex,
            agreed=post.get("agreed", ""),
            even_if_never=post.get("even_if_never") == "on",
            code_name=one_line(post.get("code_name", ""))[:255],
            foreign=post.get("foreign", "").replace("\r\n", "\n"),
        )

    def with_upload(self, request: UserRequest) -> Self:
        """Returns a copy whose code is the files that came with the form; unchanged without files.

        The files are stored for the chosen team. If they are refused, the copy has the reason as `upload_problem`, and
        cannot be sent.
        """
        if request.POST.get("code_remove") == "on":
            return replace(self, fields=replace(self.fields, code_upload=""))
        try:
            packed = packed_files(request)
            if packed is None:
                return self
            if self.tenant is None:
                raise Refused("Choose one of your teams, and then the files again.")
            made = upload_code(actor=request.user, tenant=self.tenant, packed=packed)
        except (NotAllowed, Refused) as error:
            return replace(self, upload_problem=str(error))
        files: dict[str, Any] = {
            "code_upload": made.digest,
            "code_git": "",
            "code_ref": "",
            "code_folder": "",
            "code_secret": "",
        }
        return replace(self, fields=replace(self.fields, **files))

    def with_proposals(self, request: UserRequest, uploads: QuerySet[CodeUpload]) -> Self:
        """Returns a copy whose name, command and requirements are those that the files propose that came with the form.

        Only empty fields are filled in, and those that still have what the files before proposed. `uploads` has both.
        Returns the draft unchanged if no files came, or if they were refused.
        """
        if not request.FILES or self.upload_problem or not self.fields.code_upload:
            return self
        code_name = sent_as(request)
        now = _proposals(uploads, self.fields.code_upload, code_name)
        before = _proposals(uploads, request.POST.get("code_upload", ""), self.code_name)
        found = {}
        for name, value in asdict(now).items():
            had = getattr(self.fields, name).strip()
            if had != value and had in {"", getattr(before, name)}:
                found[name] = value
        fields = replace(self.fields, **found)
        return replace(self, fields=fields, code_name=code_name, proposals=now, proposed=tuple(found))

    @property
    def problem(self) -> str:
        """Returns the problem that concerns the whole form, or "" if there is none."""
        return self.problems.get("", "")

    @property
    def code_problem(self) -> str:
        """Returns the problem of the job's code or of the files that came with the form, or "" if there is none."""
        return self.problems.get("code", self.upload_problem)

    @property
    def submit_anyway(self) -> str:
        return SUBMIT_ANYWAY

    @property
    def changed_both(self) -> bool:
        return CHANGED_BOTH in self.yaml_problems.values()

    @property
    def in_containers(self) -> bool:
        """Returns whether the draft sets a field that applies only to jobs in containers."""
        return any(getattr(self.fields, name) for name in ONLY_IN_CONTAINERS)

    @property
    def advanced(self) -> bool:
        """Returns whether a field in the section of advanced options differs from its default or has a problem.

        The page then opens the section.
        """
        usual = Fields()
        changed = any(getattr(self.fields, name) != getattr(usual, name) for name in ADVANCED)
        return changed or any(name in self.problems for name in (*ADVANCED, "retries"))

    @property
    def uses_secrets(self) -> bool:
        """Returns whether the page opens the section of secrets, because it names some or has a problem."""
        names = ("secrets", "secret_files")
        return any(getattr(self.fields, name) for name in names) or any(
            name in self.problems for name in names
        )

    @property
    def answers(self) -> bool:
        """Returns whether the page opens the section for port and readiness.

        It does if a field in this section differs from its default or has a problem.
        """
        names = ("port", "readiness_path", "readiness_period_seconds", "readiness_failures")
        usual = Fields()
        changed = any(getattr(self.fields, name) != getattr(usual, name) for name in names)
        return changed or any(name in self.problems for name in names)

    def agree(self) -> Self:
        """Returns a copy that is marked as having a form and a YAML text that agree."""
        return replace(self, agreed=digest(self.yaml))

    def in_another_cluster(self) -> Self:
        """Returns a copy without environment and GPU types, because the newly selected cluster may not have them."""
        return replace(self, fields=replace(self.fields, environment="", generations=[]))

    def use_form(self) -> Self:
        """Returns a copy whose YAML is written from the form, even if the form has problems. The copy has these
        problems."""
        rewritten = replace(self, yaml=self.fields.to_yaml(), yaml_problems={}).agree()
        try:
            return replace(rewritten, spec=self.fields.to_spec(), problems={})
        except SpecError as error:
            return replace(rewritten, spec=None, problems=_beside_fields(error))

    def use_yaml(self) -> Self:
        """Returns a copy whose form is filled from the YAML.

        If the YAML is invalid, the copy has the unchanged form, and the problems of the YAML. A text of another format
        is converted.
        """
        try:
            spec = read_yaml(self.yaml)
        except SpecError as error:
            if found := Import.read(self.yaml, self.cluster):
                return self.with_import(found)
            return replace(self, spec=None, yaml_problems=error.problems)
        return replace(self, fields=Fields.from_spec(spec), spec=spec, problems={}, yaml_problems={}).agree()

    def with_import(self, found: Import) -> Self:
        """Returns a copy with the report of an import. If a work is taken, form and YAML show its specification."""
        draft = replace(self, imported=found, foreign=found.text)
        if found.work is None:
            why = NOT_IMPORTED if found.refused else CHOOSE_WORK
            if len(found.works) == 1:
                why = f"{only(found.works[0])} {PRESS}"
            return replace(draft, spec=None, yaml_problems={"": why})
        spec = JobSpec.parse(dict(found.work.spec))
        fields = Fields.from_spec(spec)
        kept = {name: getattr(self.fields, name) for name in OF_CODE if not getattr(fields, name)}
        return replace(draft, fields=replace(fields, **kept)).use_form()

    def with_foreign_file(self, file: ForeignFile) -> Self:
        """Returns a copy whose job is the one that a file of its upload describes, with the report of the import.

        The other files remain the job's code. If they are all in one folder, the command starts there.
        """
        found = Import.read(file.text, self.cluster)
        if found is None:
            return self
        draft = self.with_import(found)
        if file.is_alone and not found.refused:
            draft = replace(draft, fields=replace(draft.fields, code_upload=""))
        elif file.folder and found.work and draft.fields.command.strip():
            command = f"cd {shlex.quote(file.folder)}\n{draft.fields.command}"
            draft = replace(draft, fields=replace(draft.fields, command=command))
        return draft.use_form() if found.work else draft

    def naming_files(self, uploads: QuerySet[CodeUpload]) -> Self:
        """Returns a copy that names the job files of its upload, which is among `uploads`, where it lacks a command."""
        if self.fields.command.strip() or not self.fields.code_upload or "command" not in self.problems:
            return self
        files = foreign_files_of(with_digest(uploads, self.fields.code_upload))
        if not files:
            return self
        names = " or ".join(one.name for one in files[:2])
        return replace(self, problems=self.problems | {"command": WRITE_OR_USE.format(names=names)})

    def taking(self, position: int) -> Self:
        """Returns a copy that shows the work at `position` of the imported text."""
        found = Import.read(self.foreign or self.yaml, self.cluster, position)
        return self.use_yaml() if found is None else self.with_import(found)

    @property
    def shown_import(self) -> Import | None:
        """Returns the import whose report the page shows, also after later edits."""
        return self.imported or (Import.read(self.foreign, self.cluster) if self.foreign else None)

    def settle(self) -> Self:
        """Returns a copy in which form and YAML agree.

        If only the form was edited since they last agreed, the YAML is rewritten from the form. If only the YAML was
        edited, the form is filled from the YAML. If both were edited, the copy has a problem that says so, and form and
        YAML are unchanged.
        """
        of_form, of_yaml = digest(self.fields.to_yaml()), digest(self.yaml)
        if of_yaml in {self.agreed, of_form}:
            return self.use_form()
        if of_form == self.agreed:
            return self.use_yaml()
        return replace(self, spec=None, yaml_problems={"": CHANGED_BOTH})

    def ready_to_send(self) -> Self:
        """Returns the draft to submit: the result of `settle`. If no team is chosen, it also has a problem that says
        so."""
        draft = self.settle()
        if draft.imported and draft.spec:  # nobody has seen the report yet
            return draft.with_problems(SpecError({"": READ_REPORT}))
        if draft.tenant is None:
            return draft.with_problems(SpecError({"tenant": "Choose one of your teams."}))
        if draft.upload_problem:
            return draft.with_problems(SpecError({"code": draft.upload_problem}))
        return draft

    def rewritten(self, asked: str | None, user: User) -> Self | None:
        """Returns a copy in which the form and the YAML agree, with the result of the pre-flight check for `user`.

        If `asked` is "form", the YAML is written from the form. If `asked` is "yaml", the form is filled from the YAML.
        If `asked` is "take-" with a number, both show this work of the imported text. If it is "file-" with the path of
        a job file of the upload, both show what is converted from it. For any other value, returns None.
        """
        if (position := position_of(asked)) is not None:
            return self.taking(position).checked_for(user)
        if asked and asked.startswith(FILE):
            uploads = CodeUpload.objects.visible_to(user)
            files = foreign_files_of(with_digest(uploads, self.fields.code_upload))
            file = next((one for one in files if one.path == asked.removeprefix(FILE)), None)
            return (self.with_foreign_file(file) if file else self.use_form()).checked_for(user)
        match asked:
            case "form":
                return self.use_form().checked_for(user)
            case "yaml":
                return self.use_yaml().checked_for(user)
        return None

    def checked_for(self, user: User) -> Self:
        """Returns a copy with the result of the pre-flight check, which predicts for `user` whether and when the job
        would start.

        If the check refuses the job, the copy has the problem instead. Returns the draft unchanged if it has no valid
        specification, no team or no cluster.
        """
        if self.spec is None or self.tenant is None or self.cluster is None:
            return self
        try:
            answer = preflight(actor=user, tenant=self.tenant, cluster=self.cluster, spec=self.spec)
        except SpecError as error:
            return replace(self, spec=None, problems=_beside_fields(error))
        except (NotAllowed, Refused) as error:
            return replace(self, spec=None, problems={"": str(error)})
        return replace(self, preflight=answer)

    @property
    def summary(self) -> str:
        """Returns in one line what would be submitted; empty before the pre-flight check."""
        return of_job(self.preflight, self.spec) if self.preflight and self.spec else ""

    def refused(self, error: NotAllowed | Refused, user: User) -> Self:
        """Returns a copy with the problem `error`, after the submit action has refused the job of `user`.

        For a job that can never run, the copy has all reasons for this, and the page offers to submit the job anyway.
        """
        if isinstance(error, Refused) and error.field == "even_if_never":
            checked = self.checked_for(user)
            why = {"gpus_per_worker": " ".join(checked.preflight.sentences)} if checked.preflight else {}
            return replace(checked, problems={"": NEVER_MEANT} | why)
        return self.with_problems(SpecError({"": str(error)}))

    def with_problems(self, error: SpecError) -> Self:
        return replace(self, spec=None, problems=_beside_fields(error))


def has_example(choices: Choices) -> bool:
    """Returns whether the page can offer the example job.

    For this, the example program must be installed, and `choices` must include a local cluster, which can run it.
    """
    local = any(cluster.backend == Cluster.Backend.LOCAL for cluster in choices.clusters)
    return local and (settings.FAIRLOT_EXAMPLES_DIR / EXAMPLE).is_file()


def example() -> Fields:
    """Returns the form of an example job: a training of one or two minutes that reports progress and saves
    checkpoints."""
    return Fields(name="digits: my first job", command=f'python "$FAIRLOT_EXAMPLES/{EXAMPLE}" --steps 1200')


def _chosen(choices: Sequence[T], pk: str) -> T | None:
    """Returns the choice with the primary key `pk`. For an empty `pk`, returns the only choice if there is exactly one.

    Otherwise returns None.
    """
    if not pk and len(choices) == 1:
        return choices[0]
    return next((choice for choice in choices if str(choice.pk) == pk), None)


def _proposals(uploads: QuerySet[CodeUpload], digest: str, sent: str = "") -> Proposals:
    """Returns what the upload with this digest proposes; nothing if it is not among `uploads`."""
    content = with_digest(uploads, digest).values_list("content", flat=True).first()
    return Proposals() if content is None else proposals_of(bytes(content), sent)


def with_digest(uploads: QuerySet[CodeUpload], digest: str) -> QuerySet[CodeUpload]:
    """Returns those of the uploads that have this digest; none if the text, which the user sent, is no digest."""
    return uploads.filter(digest=digest) if DIGEST.fullmatch(digest) else uploads.none()


def foreign_files_of(uploads: QuerySet[CodeUpload]) -> list[ForeignFile]:
    """Returns the job files of other systems in the first of these uploads."""
    content = uploads.values_list("content", flat=True).first()
    return [] if content is None else foreign_files_in(bytes(content))


def _beside_fields(error: SpecError) -> dict[str, str]:
    """Returns the problems of a refused specification by form field. The key "" has the problems that belong to no
    field."""
    problems = by_top_field(error.problems)
    beside = {name: text for name, text in problems.items() if name in FORM_FIELDS}
    rest = [f"{name} {text}".strip() for name, text in problems.items() if name not in FORM_FIELDS]
    return beside | ({"": ". ".join(rest)} if rest else {})
