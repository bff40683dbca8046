"""Every write of the scheduling room, one function a verb."""

from scheduling.actions.announcements import announce_service
from scheduling.actions.anomalies import continue_analyses, repeat_analysis, request_analysis, request_nightly
from scheduling.actions.attach import (
    attach_cluster,
    check_cluster,
    detach_cluster,
    replace_kubeconfig,
    set_bare_pods,
    set_reachable,
)
from scheduling.actions.closing import close_hours, close_next_hour, clusters_to_close
from scheduling.actions.clusters import (
    create_cluster,
    declare_node,
    pause_cluster,
    remove_node,
    resume_cluster,
    update_cluster,
)
from scheduling.actions.departures import deactivate_user, remove_member, settle_work
from scheduling.actions.discovery import declare_local_gpus
from scheduling.actions.draining import DrainMode, drain_node, drains_due, end_drain, return_node
from scheduling.actions.forecasts import forecast_starts
from scheduling.actions.gpu_use import note_gpu_use
from scheduling.actions.grants import approve_request, end_grant
from scheduling.actions.idle_gpus import idle_to_step, remove_idle_rule, set_idle_rule, snooze_idle, step_idle
from scheduling.actions.imports import import_history
from scheduling.actions.jobs import cancel_job
from scheduling.actions.leases import apply_observations, bill_running
from scheduling.actions.metrics import measure_cluster, set_metrics_source
from scheduling.actions.only_idle import set_only_idle
from scheduling.actions.operations import perform_operations
from scheduling.actions.overlong import end_overlong, overlong
from scheduling.actions.pricing import price_classes, price_next_hour
from scheduling.actions.remarks import note_remarks
from scheduling.actions.replicas import step_service
from scheduling.actions.retention import prune, remove_files
from scheduling.actions.rounds import run_round
from scheduling.actions.schedule_runs import due_schedules, run_schedule, run_schedule_now
from scheduling.actions.schedules import (
    change_schedule,
    create_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
)
from scheduling.actions.secrets import create_secret, delete_secret, replace_secret
from scheduling.actions.services import change_service, create_service, remove_service, roll_back_service
from scheduling.actions.sessions import keep_session, note_use, start_session, step_session, stop_session
from scheduling.actions.shadow import ask_shadow
from scheduling.actions.share_hours import sum_share_hours
from scheduling.actions.submitting import NotAllSubmitted, check_spec, submit_job, submit_jobs
from scheduling.actions.trade_limits import Allowance, set_trade_limits
from scheduling.actions.volumes import grant_volume, withdraw_volume

__all__ = [
    "Allowance",
    "DrainMode",
    "NotAllSubmitted",
    "announce_service",
    "apply_observations",
    "approve_request",
    "ask_shadow",
    "attach_cluster",
    "bill_running",
    "cancel_job",
    "change_schedule",
    "change_service",
    "check_cluster",
    "check_spec",
    "close_hours",
    "close_next_hour",
    "clusters_to_close",
    "continue_analyses",
    "create_cluster",
    "create_schedule",
    "create_secret",
    "create_service",
    "deactivate_user",
    "declare_local_gpus",
    "declare_node",
    "delete_schedule",
    "delete_secret",
    "detach_cluster",
    "drain_node",
    "drains_due",
    "due_schedules",
    "end_drain",
    "end_grant",
    "end_overlong",
    "forecast_starts",
    "grant_volume",
    "idle_to_step",
    "import_history",
    "keep_session",
    "measure_cluster",
    "note_gpu_use",
    "note_remarks",
    "note_use",
    "overlong",
    "pause_cluster",
    "pause_schedule",
    "perform_operations",
    "price_classes",
    "price_next_hour",
    "prune",
    "remove_files",
    "remove_idle_rule",
    "remove_member",
    "remove_node",
    "remove_service",
    "repeat_analysis",
    "replace_kubeconfig",
    "replace_secret",
    "request_analysis",
    "request_nightly",
    "resume_cluster",
    "resume_schedule",
    "return_node",
    "roll_back_service",
    "run_round",
    "run_schedule",
    "run_schedule_now",
    "set_bare_pods",
    "set_idle_rule",
    "set_metrics_source",
    "set_only_idle",
    "set_reachable",
    "set_trade_limits",
    "settle_work",
    "snooze_idle",
    "start_session",
    "step_idle",
    "step_service",
    "step_session",
    "stop_session",
    "submit_job",
    "submit_jobs",
    "sum_share_hours",
    "update_cluster",
    "withdraw_volume",
]
