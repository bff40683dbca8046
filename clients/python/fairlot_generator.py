"""Writes fairlot_client/answers.py and fairlot_client/operations.py from the API's OpenAPI document.

`make client` sends the document to the standard input of this program. NAMES says which method of the client calls each
operation of the API; README.md says how to add one.
"""

from __future__ import annotations

import json
import keyword
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "fairlot_client"
PREFIX = "/api/v1"

# The method of the client, by the operation that it calls. Deprecated operations have no method.
NAMES = {
    "GET /me": "me",
    "POST /login": "begin_login",
    "POST /login/token": "login_token",
    # jobs
    "GET /jobs": "list_jobs",
    "GET /jobs/groups": "list_job_groups",
    "POST /jobs": "submit_job",
    "POST /jobs/bulk": "submit_jobs",
    "POST /preflight": "check_job",
    "GET /jobs/{job_id}": "get_job",
    "POST /jobs/{job_id}/clone": "clone_job",
    "POST /jobs/{job_id}/cancel": "cancel_job",
    "POST /jobs/{job_id}/preemptible": "set_job_preemptible",
    "GET /jobs/{job_id}/events": "list_job_events",
    "GET /jobs/{job_id}/log": "read_job_log",
    "GET /jobs/{job_id}/metrics": "get_job_metrics",
    "GET /jobs/{job_id}/log/stream": "follow_job_log",
    "GET /jobs/{job_id}/log/lines": "read_job_log_lines",
    "GET /jobs/{job_id}/log/search": "search_job_log",
    "GET /jobs/{job_id}/scheduling": "explain_job",
    "GET /jobs/{job_id}/cost": "get_job_cost",
    "GET /jobs/{job_id}/gpu-use": "get_job_gpu_use",
    "POST /jobs/{job_id}/snooze": "snooze_job",
    "PATCH /jobs/{job_id}": "change_job",
    "GET /views": "list_views",
    "POST /views": "save_view",
    "DELETE /views/{view_id}": "remove_view",
    "POST /code": "upload_code",
    "POST /convert": "convert_file",
    # files of jobs
    "GET /jobs/{job_id}/files": "list_job_files",
    "GET /jobs/{job_id}/files/content": "read_job_file",
    "GET /jobs/{job_id}/files/archive": "download_job_files",
    "GET /jobs/{job_id}/results": "list_job_results",
    "GET /jobs/{job_id}/results/archive": "download_job_results",
    "DELETE /jobs/{job_id}/files": "delete_job_files",
    "GET /storage": "list_storage",
    # sweeps
    "GET /sweeps": "list_sweeps",
    "POST /sweeps": "create_sweep",
    "POST /sweeps/preview": "preview_sweep",
    "GET /sweeps/{sweep_id}": "get_sweep",
    "GET /sweeps/{sweep_id}/members": "list_sweep_members",
    "POST /sweeps/{sweep_id}/cancel": "cancel_sweep",
    "POST /sweeps/{sweep_id}/run-failed": "run_failed_members",
    # pipelines
    "GET /pipelines": "list_pipelines",
    "POST /pipelines": "create_pipeline",
    "GET /pipelines/{pipeline_id}": "get_pipeline",
    "POST /pipelines/{pipeline_id}/cancel": "cancel_pipeline",
    "POST /pipelines/{pipeline_id}/run-again": "run_pipeline_again",
    # drafts
    "GET /drafts": "list_drafts",
    "POST /drafts": "create_draft",
    "GET /drafts/{draft_id}": "get_draft",
    "DELETE /drafts/{draft_id}": "delete_draft",
    # templates
    "GET /templates": "list_templates",
    "POST /templates": "publish_template",
    "GET /templates/{template_id}": "get_template",
    "POST /templates/{template_id}/versions": "publish_template_version",
    "POST /templates/{template_id}/withdraw": "withdraw_template",
    "POST /templates/{template_id}/preview": "preview_template",
    "POST /templates/{template_id}/submit": "submit_template",
    # services
    "GET /services": "list_services",
    "POST /services": "create_service",
    "GET /services/{service_id}": "get_service",
    "PATCH /services/{service_id}": "change_service",
    "DELETE /services/{service_id}": "remove_service",
    "POST /services/{service_id}/rollback": "roll_back_service",
    "GET /services/{service_id}/events": "list_service_events",
    "GET /services/{service_id}/traffic": "get_service_traffic",
    "GET /services/{service_id}/log/lines": "read_service_log_lines",
    # terminals
    "GET /jobs/{job_id}/terminals": "list_terminals",
    "DELETE /jobs/{job_id}/terminals/{terminal_id}": "end_terminal",
    # sessions
    "GET /sessions": "list_sessions",
    "POST /sessions": "start_session",
    "GET /sessions/{session_id}": "get_session",
    "DELETE /sessions/{session_id}": "stop_session",
    "POST /sessions/{session_id}/keep": "keep_session",
    # schedules
    "GET /schedules": "list_schedules",
    "POST /schedules": "create_schedule",
    "GET /schedules/{schedule_id}": "get_schedule",
    "PUT /schedules/{schedule_id}": "change_schedule",
    "DELETE /schedules/{schedule_id}": "delete_schedule",
    "POST /schedules/{schedule_id}/pause": "pause_schedule",
    "POST /schedules/{schedule_id}/resume": "resume_schedule",
    "POST /schedules/{schedule_id}/run": "run_schedule",
    "GET /schedules/{schedule_id}/runs": "list_schedule_runs",
    # shares, trades and reports
    "GET /gpu-map": "gpu_map",
    "GET /holders": "list_holders",
    "GET /consumers": "list_consumers",
    "GET /share": "get_share",
    "GET /trades": "list_trades",
    "GET /trades/booked": "list_booked_trades",
    "GET /trade-limits": "list_trade_limits",
    "PUT /trade-limits": "set_trade_limits",
    "GET /usage": "get_usage",
    "GET /statement": "get_statement",
    "GET /capacity": "get_capacity",
    "GET /fairness": "get_fairness",
    "GET /operations/{subject}": "get_operations_report",
    "GET /chargeback": "get_chargeback",
    "GET /exports/{form}": "export",
    "GET /subscriptions": "list_subscriptions",
    "PUT /subscriptions": "subscribe",
    "DELETE /subscriptions/{subscription_id}": "unsubscribe",
    # notifications
    "GET /notifications/stream": "follow_notifications",
    "GET /notifications": "list_notifications",
    "POST /notifications/read": "mark_notifications",
    "GET /notification-rules": "list_notification_rules",
    "PUT /notification-rules": "set_notification_rule",
    "DELETE /notification-rules/{rule_id}": "remove_notification_rule",
    "GET /notification-channels": "list_notification_channels",
    "POST /notification-channels": "create_notification_channel",
    "PUT /notification-channels/{channel_id}": "change_notification_channel",
    "DELETE /notification-channels/{channel_id}": "remove_notification_channel",
    "POST /notification-channels/{channel_id}/test": "test_notification_channel",
    "GET /share/anomalies": "get_sharing_anomalies",
    "POST /share/anomalies": "start_analysis",
    "POST /share/anomalies/{analysis_id}/again": "repeat_analysis",
    # idle GPUs
    "GET /idle": "list_idle_jobs",
    "GET /idle/teams": "list_idle_teams",
    "GET /idle-rules": "list_idle_rules",
    "PUT /idle-rules": "set_idle_rule",
    "POST /idle-rules/preview": "preview_idle_rule",
    "DELETE /idle-rules/{rule_id}": "remove_idle_rule",
    # clusters
    "GET /clusters": "list_clusters",
    "POST /clusters": "attach_cluster",
    "GET /clusters/{name}": "get_cluster",
    "POST /clusters/{name}/check": "check_cluster",
    "PUT /clusters/{name}/kubeconfig": "replace_kubeconfig",
    "PUT /clusters/{name}/reachable": "set_cluster_reachable",
    "PUT /clusters/{name}/standalone-pods": "set_standalone_pods",
    "POST /clusters/{name}/detach": "detach_cluster",
    "GET /clusters/{name}/settings": "get_cluster_settings",
    "PATCH /clusters/{name}/settings": "change_cluster_settings",
    "GET /clusters/{name}/policy": "get_policy",
    "PUT /clusters/{name}/policy": "set_policy",
    "POST /clusters/{name}/policy/preview": "preview_policy",
    "GET /clusters/{name}/policy/comparison": "compare_policies",
    "GET /clusters/{name}/nodes/{node}/drain": "get_drain",
    "POST /clusters/{name}/nodes/{node}/drain": "drain_node",
    "DELETE /clusters/{name}/nodes/{node}/drain": "undrain_node",
    "POST /clusters/{name}/drain": "drain_nodes",
    "POST /clusters/{name}/return": "return_nodes",
    "GET /announcements": "list_announcements",
    "POST /announcements": "create_announcement",
    "PUT /announcements/{announcement_id}": "change_announcement",
    "DELETE /announcements/{announcement_id}": "withdraw_announcement",
    "POST /announcements/{announcement_id}/dismiss": "dismiss_announcement",
    "GET /advance-reservations": "list_advance_reservations",
    "GET /advance-reservations/{reservation_id}": "get_advance_reservation",
    "POST /advance-reservations": "create_advance_reservation",
    "PUT /advance-reservations/{reservation_id}": "change_advance_reservation",
    "DELETE /advance-reservations/{reservation_id}": "cancel_advance_reservation",
    # teams, limits, budgets and requests
    "POST /teams": "create_team",
    "PUT /teams/{team}/tickets": "set_team_tickets",
    "PUT /teams/{team}/parent": "move_team",
    "PUT /teams/{team}/archived": "set_team_archived",
    "GET /teams/{team}/members": "list_members",
    "POST /teams/{team}/members": "add_member",
    "PATCH /teams/{team}/members/{user}": "change_member",
    "DELETE /teams/{team}/members/{user}": "remove_member",
    "GET /teams/{team}/invitations": "list_invitations",
    "POST /teams/{team}/invitations": "create_invitation",
    "DELETE /teams/{team}/invitations/{invitation_id}": "revoke_invitation",
    "POST /invitations/accept": "accept_invitation",
    "POST /tickets/preview": "preview_tickets",
    "GET /limits": "list_limits",
    "GET /limits/own": "list_own_limits",
    "POST /limits": "set_limit",
    "DELETE /limits/{limit_id}": "remove_limit",
    "POST /limits/preview": "preview_limit",
    "POST /limits/{limit_id}/removal/preview": "preview_limit_removal",
    "GET /budgets": "list_budgets",
    "PUT /budgets": "set_budget",
    "DELETE /budgets/{budget_id}": "remove_budget",
    "GET /requests": "list_requests",
    "POST /requests": "ask_for",
    "GET /requests/{request_id}": "get_request",
    "POST /requests/{request_id}/approve": "approve_request",
    "POST /requests/{request_id}/decline": "decline_request",
    "POST /requests/{request_id}/withdraw": "withdraw_request",
    # secrets, volumes and work of members
    "GET /secrets": "list_secrets",
    "POST /secrets": "create_secret",
    "PUT /secrets/{secret_id}": "replace_secret",
    "DELETE /secrets/{secret_id}": "delete_secret",
    "GET /volumes": "list_volumes",
    "GET /audit": "list_audit_events",
    "GET /audit/{form}": "export_audit_events",
    "GET /prices": "list_prices",
    "POST /prices": "set_price",
    "DELETE /prices/{price_id}": "remove_price",
    "POST /clusters/{name}/volumes": "grant_volume",
    "DELETE /clusters/{name}/volumes/{volume_id}": "withdraw_volume",
    "GET /work/{username}": "get_work",
    "POST /work/{username}/hand-over": "hand_over_work",
}

ANSWERS_HEAD = '''"""Types of the objects that the API takes and returns.

Written by `make client` from the API's OpenAPI document. Times are ISO 8601 in UTC; amounts are exact decimals as text.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''
OPERATIONS_HEAD = '''"""Describes each operation of the API once, for both clients.

Written by `make client` from the API's OpenAPI document.
"""

from __future__ import annotations

from typing import Any, Literal

from fairlot_client import answers
from fairlot_client.calls import (
    UNSET,
    Call,
    Event,
    Method,
    PagedMethod,
    Pages,
    StreamMethod,
    Unset,
    filled,
    given,
    set_fields,
)
'''


def operations_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the operations of the document that are not deprecated, by method and path, such as "GET /jobs"."""
    return {
        f"{method.upper()} {path.removeprefix(PREFIX)}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not operation.get("deprecated")
    }


def files_of(document: dict[str, Any]) -> dict[str, str]:
    """Returns the text of each generated file, by its name.

    Raises ValueError if NAMES lacks an operation of the document, or names one that does not exist.
    """
    operations = operations_of(document)
    if missing := sorted(operations.keys() - NAMES.keys()):
        raise ValueError(f"NAMES in {__file__} lacks these operations: {', '.join(missing)}.")
    if unknown := sorted(NAMES.keys() - operations.keys()):
        raise ValueError(f"NAMES in {__file__} has operations that the API lacks: {', '.join(unknown)}.")
    schemas = document["components"]["schemas"]
    sent, returned = _used_schemas(operations.values(), schemas)
    types = [_typed_dict(name, schemas[name], is_sent=name in sent) for name in sorted(sent | returned)]
    functions, methods = [OPERATIONS_HEAD], []
    for key, name in NAMES.items():
        for made, text, kind in _functions(key, name, operations[key], schemas):
            functions.append(text)
            methods.append(f"    {made} = {kind}Method({made})")
    body = '"""The methods of both clients."""'
    functions.append("\n".join(["class Operations:", f"    {body}", "", *methods]))
    return {
        "answers.py": _formatted("\n\n".join([ANSWERS_HEAD, *types])),
        "operations.py": _formatted("\n\n".join(functions)),
    }


def _used_schemas(operations: Any, schemas: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Returns the names of the schemas inside bodies of requests, and of those in answers. Bodies themselves become
    arguments."""
    sent: set[str] = set()
    returned: set[str] = set()
    for operation in operations:
        body = _body(operation, schemas)
        _collect(body.get("properties", body), schemas, sent)
        answer = _json_answer(operation)
        page = schemas.get(_ref(answer), {}) if answer else {}
        _collect(page["properties"] if _is_page(page) else answer, schemas, returned)
    return sent, returned


def _collect(part: Any, schemas: dict[str, Any], into: set[str]) -> None:
    if isinstance(part, list):
        for one in part:
            _collect(one, schemas, into)
    elif isinstance(part, dict):
        name = _ref(part)
        if name and name not in into:
            into.add(name)
            _collect(schemas[name], schemas, into)
        for one in part.values():
            _collect(one, schemas, into)


def _ref(schema: dict[str, Any] | None) -> str:
    ref = (schema or {}).get("$ref", "")
    return ref.rpartition("/")[2] if isinstance(ref, str) else ""


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    return schemas[_ref(schema)] if _ref(schema) else schema  # type: ignore[no-any-return]


def _contents(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: value
        for status, answer in operation["responses"].items()
        if str(status).startswith("2")
        for kind, value in answer.get("content", {}).items()
    }


def _json_answer(operation: dict[str, Any]) -> dict[str, Any] | None:
    return _contents(operation).get("application/json", {}).get("schema")  # type: ignore[no-any-return]


def _is_page(schema: dict[str, Any]) -> bool:
    return set(schema.get("properties", {})) == {"items", "next"}


def type_of(schema: dict[str, Any], *, prefix: str = "") -> str:
    """Returns the Python type of a JSON schema. `prefix` comes before the names of components."""
    if name := _ref(schema):
        return f"{prefix}{name}"
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "anyOf" in schema:
        kinds = dict.fromkeys(type_of(one, prefix=prefix) for one in schema["anyOf"])
        kinds = dict.fromkeys(
            [*(kind for kind in kinds if kind != "None"), *(["None"] if "None" in kinds else [])]
        )
        return " | ".join(kinds)
    match schema.get("type"):
        case "string":
            return "str"
        case "integer":
            return "int"
        case "number":
            return "float"
        case "boolean":
            return "bool"
        case "null":
            return "None"
        case "array":
            return f"list[{type_of(schema.get('items', {}), prefix=prefix)}]"
        case "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {type_of(values, prefix=prefix) if isinstance(values, dict) else 'Any'}]"
    return "Any"


def _typed_dict(name: str, schema: dict[str, Any], *, is_sent: bool) -> str:
    fields = {
        name_: kind for name_, kind in schema.get("properties", {}).items() if not kind.get("deprecated")
    }
    required = schema.get("required", [])
    doc = schema.get("description", "").strip()
    lines = [f"class {name}(TypedDict):"]
    if doc:
        lines += [f"    {line}".rstrip() for line in f'"""{doc}"""'.splitlines()]
        lines.append("")
    for one, kind in fields.items():
        shown = type_of(kind)
        optional = is_sent and one not in required
        lines.append(f"    {one}: {f'NotRequired[{shown}]' if optional else shown}")
    return "\n".join(lines if fields else [*lines, "    pass"])


def _functions(
    key: str, name: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yields the name and the text of each function for an operation, and its kind: "Paged", "Stream" or "".

    An operation that also answers with files has a second function, whose name ends with _file.
    """
    contents = _contents(operation)
    answer = _json_answer(operation)
    page = schemas.get(_ref(answer), {}) if answer else {}
    named = {one["name"] for one in operation["parameters"] if not one.get("deprecated")}
    cursor = (
        next((one for one in ("before", "after", "page") if one in named), None) if _is_page(page) else None
    )
    if "text/event-stream" in contents:
        yield name, _function(key, name, operation, schemas, "Call[Event]"), "Stream"
        return
    if contents and ("application/json" not in contents or len(contents) > 1) and "format" not in named:
        yield name, _function(key, name, operation, schemas, "Call[bytes]", is_file=True), ""
        return
    if cursor:
        item = type_of(page["properties"]["items"]["items"], prefix="answers.")
        yield name, _function(key, name, operation, schemas, f"Pages[{item}]", cursor=cursor), "Paged"
    else:
        kind = type_of(answer, prefix="answers.") if answer else "None"
        yield name, _function(key, name, operation, schemas, f"Call[{kind}]"), ""
    if "format" in named:
        made = f"{name}_file"
        yield made, _function(key, made, operation, schemas, "Call[bytes]", is_file=True), ""


@dataclass
class _Signature:
    """The arguments of a function, and what it passes to Call."""

    places: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    query: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    def add_parameter(self, parameter: dict[str, Any], *, is_paged: bool) -> None:
        name, schema = parameter["name"], parameter["schema"]
        if parameter["in"] == "path":
            self.places.append(f"{name}: {type_of(schema)}")
        elif parameter["in"] == "header":
            if name == "If-Match":
                self.optional.append("if_match: str | None = None")
                self.options.append("version=if_match")
            else:
                self.optional.append("idempotency_key: str | None = None")
                self.options += ["takes_key=True", "key=idempotency_key"]
        else:
            # A list ends only with its last page, so its `limit` is the size of a page.
            argument = "page_size" if name == "limit" and is_paged else _argument(name)
            self._add_query(argument, schema, is_required=bool(parameter.get("required")) or name == "format")
            self.query.append(f"{'limit' if argument == 'page_size' else argument}={argument}")

    def _add_query(self, argument: str, schema: dict[str, Any], *, is_required: bool) -> None:
        if argument == "format":
            schema = {"enum": [one for one in schema["enum"] if one != "json"]}
        kind = type_of(schema).removesuffix(" | None")
        if is_required:
            self.required.append(f"{argument}: {kind}")
        else:
            self.optional.append(f"{argument}: {kind} | None = None")

    def add_body(self, body: dict[str, Any]) -> None:
        if body.get("type") == "array":
            argument = _argument(body["title"].lower())
            self.required.append(f"{argument}: {type_of(body, prefix='answers.')}")
            self.options.append(f"body={argument}")
        elif body:
            fields = {name: one for name, one in body["properties"].items() if not one.get("deprecated")}
            for name, schema in fields.items():
                argument, kind = _argument(name), type_of(schema, prefix="answers.")
                if name in body.get("required", []):
                    self.required.append(f"{argument}: {kind}")
                else:
                    null = " | None" if kind.endswith(" | None") else ""
                    self.optional.append(f"{argument}: {kind.removesuffix(' | None')} | Unset{null} = UNSET")
            sent = ", ".join(f"{_argument(name)}={_argument(name)}" for name in fields)
            self.options.append(f"body=set_fields({sent})")

    def add_file(self) -> None:
        self.required.append("content: bytes")
        self.options.append("body=content")

    def __str__(self) -> str:
        keywords = [*self.required, *self.optional]
        return ", ".join([*self.places, *(["*"] if keywords else []), *keywords])


def _function(
    key: str,
    name: str,
    operation: dict[str, Any],
    schemas: dict[str, Any],
    returns: str,
    *,
    is_file: bool = False,
    cursor: str | None = None,
) -> str:
    method, _, path = key.partition(" ")
    # In "/clusters/{name}" the argument is `cluster`, because the body may have a `name`, too.
    path = re.sub(r"/(\w+)s/{name}", r"/\1s/{\1}", path)
    names = re.findall("{(.+?)}", path)
    signature = _Signature()
    for parameter in operation["parameters"]:
        if not parameter.get("deprecated") and (is_file or parameter["name"] != "format"):
            renamed = {"name": names.pop(0)} if parameter["in"] == "path" else {}
            signature.add_parameter(parameter | renamed, is_paged=cursor is not None)
    signature.add_body(_body(operation, schemas))
    if operation.get("requestBody", {}).get("content", {}).keys() - {"application/json"}:
        signature.add_file()
    options = list(signature.options)
    if signature.query:
        options.append(f"query=given({', '.join(signature.query)})")
    if is_file:
        options.append("is_file=True")
    values = ", ".join(f"{one.partition(':')[0]}={one.partition(':')[0]}" for one in signature.places)
    place = f"filled({path!r}, {values})" if values else repr(path)
    made = f"Call({', '.join([repr(method), place, *options])})"
    if cursor:
        made = f"Pages({made}, {cursor!r})"
    return f"def {name}({signature}) -> {returns}:\n{_docstring(operation)}\n    return {made}"


def _argument(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _docstring(operation: dict[str, Any]) -> str:
    summary = f"{operation['summary']}."
    rest = operation.get("description", "").strip()
    text = f"{summary}\n\n{rest}\n" if rest else summary
    lines = f'"""{text}"""'.splitlines()
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FOLDER / "generated.py"), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    """Reads the OpenAPI document from the standard input, and writes both files."""
    for name, text in files_of(json.load(sys.stdin)).items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
