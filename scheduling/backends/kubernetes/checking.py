"""The check of a kubeconfig: asks the API server which user and rights the kubeconfig gives Fairlot, and explains
problems to users."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import urllib3

from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused, Unauthorized, Unreachable
from scheduling.backends.kubernetes.kubeconfig import Kubeconfig
from scheduling.backends.kubernetes.namespaces import ACCOUNT, HOME, TENANT
from scheduling.backends.kubernetes.podgroups import offered
from scheduling.backends.kubernetes.rights import (
    ANYTHING,
    BEYOND,
    OPTIONAL,
    POLICIES,
    POLICIES_VERSION,
    Right,
    needed,
)

# The only user that the admission policies of deploy/kubernetes allow to do Fairlot's work.
FAIRLOT = f"system:serviceaccount:{HOME}:{ACCOUNT}"
OLDEST = (1, 30)  # the first version of Kubernetes with stable admission policies
# Time limit in seconds for all requests of a check together; api.py limits each request.
LONGEST_SECONDS = 60.0
# A token that expires sooner should be replaced now.
SOON = timedelta(days=3)


class NoAnswer(Exception):
    """Raised when a kubeconfig cannot be checked: the server does not answer, refuses the request, or is not a usable
    API server.

    `str(error)` gives users the reason.
    """


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of checking a kubeconfig against its cluster."""

    user: str
    version: str
    identity: str  # UID of the kube-system namespace, which identifies the cluster; empty without the right to read it
    rights: dict[str, bool]  # maps the key of each right that Fairlot needs to whether Fairlot has it
    beyond: list[str] = field(default_factory=list)  # rights that Fairlot has but should not have, in words
    # API version of PodGroups that the cluster and Fairlot support; empty when they share none.
    podgroups: str = ""
    trouble: str = ""  # why jobs cannot run, in words; empty when they can


def look(kubeconfig: Kubeconfig, *, namespace_prefix: str, now: datetime) -> Findings:
    """Checks a kubeconfig against its cluster and returns the findings.

    `namespace_prefix` is the beginning of the names of teams' namespaces. `now` is the current time, with which the
    expiry of the credentials is compared. Raises NoAnswer if the API server does not answer or refuses the credentials.
    """
    api = Api(kubeconfig.content)
    try:
        return _look(api, kubeconfig, namespace_prefix, now)
    except (Unreachable, Refused) as error:
        raise NoAnswer(in_words(error)) from error
    finally:
        api.close()


def _look(api: Api, kubeconfig: Kubeconfig, namespace_prefix: str, now: datetime) -> Findings:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except Missing:
        raise NoAnswer(_too_old(str(api.get("/version").get("gitVersion", "")))) from None
    user = str(said.get("status", {}).get("userInfo", {}).get("username", ""))
    if not user:
        raise NoAnswer("The server at this address is not a Kubernetes API server.")
    version = str(api.get("/version").get("gitVersion", ""))
    rights, beyond = _rights(api, namespace_prefix)
    troubles = [_age(version), _other_user(user), _missing(rights)]
    if not any(troubles):
        troubles.append(_policies(api))
    troubles.append(_end(kubeconfig.ends, now))
    return Findings(
        user=user,
        version=version,
        identity=_identity(api),
        rights=rights,
        beyond=beyond,
        podgroups=offered(api),
        trouble=" ".join(filter(None, troubles)),
    )


class TooSlow(Unreachable):
    """Raised when the API server answers so slowly that the check of a kubeconfig would exceed its time limit."""


def _rights(api: Api, namespace_prefix: str) -> tuple[dict[str, bool], list[str]]:
    until = time.monotonic() + LONGEST_SECONDS

    def allowed(right: Right, namespace: str = "") -> bool:
        if time.monotonic() > until:
            raise TooSlow(f"the API server takes more than {LONGEST_SECONDS:.0f} s to answer")
        return _allowed(api, right, namespace)

    # Rights in teams' namespaces are granted with each namespace, so the check needs an existing namespace.
    team = _a_teams_namespace(api, namespace_prefix)
    rights = {
        right.key: allowed(right, team if right.in_team else "") for right in needed(in_teams=bool(team))
    }
    if allowed(ANYTHING):
        return rights, ["do everything"]
    return rights, [words for right, words in BEYOND if allowed(right)]


def _allowed(api: Api, right: Right, namespace: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


def _a_teams_namespace(api: Api, prefix: str) -> str:
    """Returns the name of a namespace that Fairlot created for a team, no matter which. Such names begin with `prefix`.

    Returns "" if no such namespace exists, or if Fairlot may not list namespaces.
    """
    found = _unless_forbidden(api, "/api/v1/namespaces", labelSelector=TENANT, limit=50)
    for namespace in found.get("items", ()):
        metadata = namespace["metadata"]
        leaving = namespace.get("status", {}).get("phase") == "Terminating"
        if metadata["name"] == f"{prefix}-{metadata['labels'][TENANT]}" and not leaving:
            return str(metadata["name"])
    return ""


def _identity(api: Api) -> str:
    """Returns the UID of the namespace kube-system, which identifies a cluster; "" if Fairlot may not read it."""
    found = _unless_forbidden(api, "/api/v1/namespaces/kube-system")
    return str(found.get("metadata", {}).get("uid", ""))


def _unless_forbidden(api: Api, path: str, **query: object) -> Object:
    try:
        return api.get(path, **query)
    except Refused as refused:
        if refused.code == 403:  # the findings about rights already name the missing right
            return {}
        raise


def _age(version: str) -> str:
    found = re.match(r"v?(\d+)\.(\d+)", version, re.ASCII)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        return _too_old(version)
    return ""


def _too_old(version: str) -> str:
    return (
        f"The Kubernetes version of this cluster ({version or 'unknown'}) is too old; {OLDEST[0]}.{OLDEST[1]} or"
        " newer is required."
    )


def _other_user(user: str) -> str:
    if user == FAIRLOT:
        return ""
    return (
        f"The credentials belong to {user}, but Fairlot's policies in this cluster allow only {FAIRLOT}. Use a token"
        f" of {FAIRLOT}."
    )


def _policies(api: Api) -> str:
    """Describes to users what is wrong with the cluster's admission policies; "" if nothing is wrong.

    The cluster must have all policies of the folder deploy/kubernetes, in the version that this release of Fairlot
    needs or a newer one. Each of them must deny the requests that violate it.
    """
    path, ours = (
        "/apis/admissionregistration.k8s.io/v1/validatingadmission",
        "app.kubernetes.io/part-of=fairlot",
    )
    policies = api.get(f"{path}policies", labelSelector=ours)["items"]
    bindings = api.get(f"{path}policybindings", labelSelector=ours)["items"]
    versions = {one["metadata"]["name"]: _version(one) for one in policies}
    denying = {one["spec"]["policyName"] for one in bindings if "Deny" in one["spec"]["validationActions"]}
    if missing := sorted(POLICIES - (versions.keys() & denying)):
        return f"{_NOT_IN_FORCE} in this cluster ({_few(missing)}). Apply all files of deploy/kubernetes."
    if older := sorted(name for name in POLICIES if versions[name] < POLICIES_VERSION):
        return (
            f"The admission policies in this cluster are older than this release of Fairlot ({_few(older)}): apply"
            " all files of deploy/kubernetes from this release."
        )
    return "" if _refuses(api) else f"{_NOT_IN_FORCE} in this cluster. Apply all files of deploy/kubernetes."


_NOT_IN_FORCE = "Fairlot's admission policies are not in force"


def _version(policy: Object) -> int:
    said = policy["metadata"]["labels"].get("app.kubernetes.io/version", "")
    return int(said) if said.isdecimal() else 0


def _refuses(api: Api) -> bool:
    """Returns whether the admission policies deny a request that they should deny. Sends that request as a dry run."""
    unlabelled = {"metadata": {"generateName": "fairlot-probe-"}}
    try:
        api.create("/api/v1/namespaces?dryRun=All", unlabelled)
    except Refused as refused:
        if "ValidatingAdmissionPolicy" in refused.message:
            return True
        raise
    return False


def _missing(rights: dict[str, bool]) -> str:
    missing = [key for key, there in rights.items() if not there and key not in OPTIONAL]
    if not missing:
        return ""
    if not any(rights.values()):
        return "Fairlot has no rights in this cluster. Apply deploy/kubernetes to it."
    return f"Fairlot lacks rights in this cluster: {_few(missing)}. Apply deploy/kubernetes to it."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _end(ends: datetime | None, now: datetime) -> str:
    if ends is None or ends - now > SOON:
        return ""
    return f"The credentials expire on {ends:%-d %B %Y at %H:%M} UTC. Replace the kubeconfig before then."


def in_words(error: Unreachable | Refused) -> str:
    """Explains to users why the API server gave no useful answer.

    Quotes only the HTTP status, because a server other than Kubernetes may have written the text of the answer.
    """
    if isinstance(error, Unauthorized):
        return "The API server does not accept the token or certificate: it is wrong, has expired or was revoked."
    if isinstance(error, Refused):
        if 300 <= error.code < 400:
            return "The API server redirects to another address. Fairlot follows no redirects: enter the other address."
        if error.code == 429:
            return "The API server is overloaded and does not answer."
        if error.code == 403 and error.reason == "Forbidden":
            return (
                "The API server refuses every request of this user, even the request for the user's own name."
            )
        return f"The server at this address answers with error {error.code}. It may not be an API server."
    return _unreachable_in_words(error)


def _unreachable_in_words(error: Unreachable) -> str:
    """Explains a connection error to users. Examines the urllib3 exception that caused `error`."""
    cause, said = error.__cause__, str(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        if "mismatch" in said or "not valid for" in said:
            return "The API server's certificate does not match the host name in the kubeconfig."
        if "expired" in said:
            return "The API server's certificate has expired."
        return (
            "The API server's certificate is not signed by the kubeconfig's certificate-authority-data. The server "
            "may belong to another cluster, or may be an impostor."
        )
    if isinstance(cause, urllib3.exceptions.NameResolutionError):
        return "The API server cannot be reached: its name cannot be resolved."
    if isinstance(cause, urllib3.exceptions.NewConnectionError):
        return "The API server cannot be reached: nothing listens at its address."
    if isinstance(cause, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.ReadTimeoutError):
        return "The API server cannot be reached: it does not answer in time."
    if "SSL" in said:
        return "The TLS connection to this address failed. The server there may not be an API server."
    if isinstance(error, TooSlow):
        return f"The cluster cannot be used: {said}."
    return "The API server cannot be reached, or its answer was incomplete."
