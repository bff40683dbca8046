"""The code that the form of a pipeline has beside its YAML: an upload for all steps, and one for each of some steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from django.http import QueryDict

from accounting.core.errors import NotAllowed, Refused
from accounting.core.texts import one_line
from accounting.models import Tenant, User
from portal.submit.uploads import packed_files
from portal.user_request import UserRequest
from scheduling.jobs.code import ABOUT, upload_code
from scheduling.models import CodeUpload
from scheduling.pipelines.definition import FOR_ALL, MOST_STEPS
from scheduling.spec.code import DIGEST


@dataclass(frozen=True, slots=True)
class Row:
    """The code of a step, or of all steps that name none. `upload` is None if the user may not use it any more."""

    step: str
    digest: str
    upload: CodeUpload | None
    is_known: bool  # the pipeline has the step


@dataclass(frozen=True)
class StepCode:
    """The uploads of the form.

    - `uploads`: digests by step; FOR_ALL for all steps.
    - `chosen`: the step for which the next files are.
    - `problem`: why the files that came with the form are no upload.
    """

    uploads: Mapping[str, str] = field(default_factory=dict)
    chosen: str = FOR_ALL
    problem: str = ""

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        """Reads the hidden fields, which have the form STEP=DIGEST; leaves out the step that the user removes."""
        pairs = (one_line(text).partition("=") for text in post.getlist("code_upload")[: MOST_STEPS + 1])
        uploads = {step: digest for step, _, digest in pairs if DIGEST.fullmatch(digest)}
        removed = post.get("code_remove")
        kept = {step: digest for step, digest in uploads.items() if step != removed}
        return cls(kept, one_line(post.get("code_for", ""))[:40])

    @classmethod
    def kept(cls, stored: Any) -> Self:
        """Returns the uploads that `to_dict` wrote into a draft."""
        pairs = stored.items() if isinstance(stored, dict) else ()
        return cls(
            {step: digest for step, digest in pairs if isinstance(digest, str) and DIGEST.fullmatch(digest)}
        )

    def to_dict(self, user: User) -> dict[str, str]:
        """Returns the uploads for a draft, which keeps them: those that the user may use."""
        seen = CodeUpload.objects.visible_to(user).filter(digest__in=self.uploads.values())
        digests = set(seen.values_list("digest", flat=True)) if self.uploads else set()
        return {step: digest for step, digest in self.uploads.items() if digest in digests}

    def with_files(self, request: UserRequest, tenant: Tenant | None) -> Self:
        """Returns a copy in which the chosen step has the files that came with the form; unchanged without files.

        The files are stored for the team. If they are refused, the copy has the reason.
        """
        try:
            packed = packed_files(request)
            if packed is None:
                return self
            if tenant is None:
                raise Refused("Choose one of your teams, and then the files again.")
            made = upload_code(actor=request.user, tenant=tenant, packed=packed)
        except (NotAllowed, Refused) as error:
            return replace(self, problem=str(error))
        return replace(self, uploads={**self.uploads, self.chosen: made.digest}, chosen=FOR_ALL)

    def rows(self, user: User, steps: Collection[str]) -> Sequence[Row]:
        """Returns the code of each step, that of all steps first. `steps` are the steps of the pipeline."""
        seen = CodeUpload.objects.visible_to(user).only(*ABOUT).filter(digest__in=self.uploads.values())
        found = {upload.digest: upload for upload in seen} if self.uploads else {}
        return [
            Row(step, digest, found.get(digest), step == FOR_ALL or step in steps)
            for step, digest in sorted(self.uploads.items())
        ]
