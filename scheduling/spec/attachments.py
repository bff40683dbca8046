"""Fields of a job spec for amounts of memory, and for secrets, volumes and images that are stored outside the spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from scheduling.spec.paths import SECRETS, VOLUMES, is_in
from scheduling.spec.refused_values import RefusedAt

# A DNS label as in Kubernetes, so that the name can be part of an object's name and of a path.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KEY = re.compile(r"[A-Za-z0-9_.][-A-Za-z0-9_.]{0,62}")
NAME_IN_WORDS = "1 to 63 lower-case letters, digits and hyphens, without a hyphen at either end"
QUANTITY = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
LEAST_MEMORY = 2**20
# Folders that nothing may be mounted at, above or in: the mount would hide files of the image, the node or Fairlot.
SYSTEM = (
    "/bin", "/boot", "/checkpoint", "/dev", "/etc", "/fairlot-code", "/fairlot-mpi", "/job", "/lib", "/lib32", "/lib64",
    "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var/lib", "/var/run",
)  # fmt: skip


Place = tuple[str | int, ...]  # keys and positions that lead from the checked field to the value


class Mounted(BaseModel):
    """A secret or volume that is mounted in every worker: its name and the folder at which it is mounted."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    name: str
    path: Annotated[str, Field(max_length=400)] = ""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name: {NAME_IN_WORDS}")
        return name

    @field_validator("path")
    @classmethod
    def _is_a_place_for_it(cls, path: str) -> str:
        if path:
            check_path(path)
        return path


class SecretFiles(Mounted):
    """A secret that is mounted in every worker as a folder with one file per key."""

    @property
    def place(self) -> str:
        return self.path or f"{SECRETS}/{self.name}"


class VolumeUse(Mounted):
    """A volume that is mounted in every worker. The job's team must have access to the volume."""

    @property
    def place(self) -> str:
        return self.path or f"{VOLUMES}/{self.name}"


def check_path(path: str) -> None:
    """Raises ValueError if no secret or volume may be mounted at `path`, for example because the path is not
    absolute."""
    if not path.startswith("/"):
        raise ValueError(f"{path} is not absolute: begin it with /")
    if not path.isprintable() or ":" in path or "//" in path or {".", ".."} & set(path.split("/")):
        raise ValueError(
            f"{path!r} must not contain :, // or unprintable characters, or a folder named . or .."
        )
    if path == "/":
        raise ValueError("/ would hide the whole image")
    for system in SYSTEM:
        if is_in(path, system) or is_in(system, path):
            raise ValueError(
                f"{path} would hide the system folder {system}; choose another path, such as /data"
            )


def check_apart(mounts: Sequence[tuple[Place, SecretFiles | VolumeUse]]) -> None:
    """Raises RefusedAt if two mounts have the same folder, or if the folder of one mount is inside that of another.

    Each item of `mounts` is a pair: the path of the value in the spec, for the error, and the mount.
    """
    for at, (place, one) in enumerate(mounts):
        for _, other in mounts[:at]:
            if is_in(one.place, other.place) or is_in(other.place, one.place):
                raise RefusedAt(
                    place,
                    f"the mounts {one.name} at {one.place} and {other.name} at {other.place} overlap; "
                    "choose paths that do not contain each other",
                )


def read_bytes(text: str) -> int:
    """Converts an amount of memory such as "64Gi" to bytes.

    Raises ValueError if the amount is invalid or less than 1Mi.
    """
    found = QUANTITY.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not an amount of memory. Write 64Gi, 512Mi or 10G")
    size = int(Decimal(found[1]) * UNITS[found[2] or ""])
    if size < LEAST_MEMORY:
        raise ValueError(f"{text} is less than 1Mi: add a unit, as in 64Gi")
    return size


def check_reference(said: str) -> None:
    """Raises ValueError if `said` is neither a valid secret name nor of the form name/key, which refers to one key of a
    secret."""
    name, slash, key = said.partition("/")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid secret name: {NAME_IN_WORDS}")
    if slash and not is_key(key):
        raise ValueError(f"{key!r} is not a valid key of a secret: use letters, digits and any of - _ .")


def is_key(key: str) -> bool:
    return bool(KEY.fullmatch(key)) and key not in {".", ".."} and not key.startswith("..")


def _sane_references(secrets: dict[str, str]) -> dict[str, str]:
    for variable, said in secrets.items():
        try:
            check_reference(said)
        except ValueError as error:
            raise RefusedAt((variable,), str(error)) from None
    return secrets


def _each_once(files: list[SecretFiles]) -> list[SecretFiles]:
    check_apart([((at,), one) for at, one in enumerate(files)])
    return files


def _volumes_each_once(volumes: list[VolumeUse]) -> list[VolumeUse]:
    check_apart([((at,), one) for at, one in enumerate(volumes)])
    names = [one.name for one in volumes]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise RefusedAt((at, "name"), f"the list contains {name} twice")
    return volumes


# By environment variable, the secret that sets it: its name, or name/key for a secret with several keys.
SecretVariables = Annotated[dict[str, str], Field(max_length=100), AfterValidator(_sane_references)]
SecretFolders = Annotated[list[SecretFiles], Field(max_length=20), AfterValidator(_each_once)]
Volumes = Annotated[list[VolumeUse], Field(max_length=20), AfterValidator(_volumes_each_once)]


def _amount(text: str) -> str:
    if text:
        read_bytes(text)
    return text


def _folder(path: str) -> str:
    if path and (not path.startswith("/") or not path.isprintable()):
        raise ValueError(f"{path!r} is not absolute: begin it with /")
    return path


def _secret_name(name: str) -> str:
    if name and not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid secret name: {NAME_IN_WORDS}")
    return name


Amount = Annotated[str, Field(max_length=20), AfterValidator(_amount)]
Folder = Annotated[str, Field(max_length=400), AfterValidator(_folder)]
SecretName = Annotated[str, AfterValidator(_secret_name)]
# A UID or GID. 0 is excluded: it is root, which no container may run as.
Id = Annotated[int, Field(ge=1, le=2**31 - 1)]


class SpecWithAttachments(Protocol):
    """The type of a spec that has secrets, volumes and memory. It has the fields that `check_together` and
    `named_secrets` read."""

    variables: Any
    secrets: Any
    secret_files: Any
    volumes: Any
    image_pull_secret: Any
    memory: Any
    shm: Any


def check_together(spec: SpecWithAttachments) -> None:
    """Raises RefusedAt if the values of different fields conflict, for example if there is more shared memory than
    memory."""
    if both := sorted(set(spec.variables) & set(spec.secrets)):
        name = both[0]
        raise RefusedAt(("secrets", name), f"{name} is already one of the variables; choose another name")
    files: list[tuple[Place, Any]] = [(("secret_files", at), one) for at, one in enumerate(spec.secret_files)]
    check_apart([*files, *((("volumes", at), one) for at, one in enumerate(spec.volumes))])
    if spec.memory and spec.shm and read_bytes(spec.shm) > read_bytes(spec.memory):
        raise RefusedAt(("shm",), "must not be more than memory, because shared memory is a part of memory")


def named_secrets(spec: SpecWithAttachments) -> list[str]:
    """Returns the names of all secrets that a spec uses, without duplicates."""
    variables = (said.partition("/")[0] for said in spec.secrets.values())
    image = [spec.image_pull_secret] if spec.image_pull_secret else []
    return list(dict.fromkeys([*variables, *(files.name for files in spec.secret_files), *image]))
