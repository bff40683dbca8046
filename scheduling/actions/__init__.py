"""Every write of the scheduling room, one function a verb."""

from scheduling.actions.attach import attach_cluster, check_cluster, detach_cluster, replace_kubeconfig
from scheduling.actions.clusters import (
    create_cluster,
    declare_node,
    drain_node,
    pause_cluster,
    remove_node,
    resume_cluster,
    return_node,
    update_cluster,
)
from scheduling.actions.discovery import declare_local_gpus
from scheduling.actions.jobs import cancel_job, check_spec, submit_job
from scheduling.actions.leases import apply_observations, bill_running
from scheduling.actions.operations import perform_operations
from scheduling.actions.remarks import note_remarks
from scheduling.actions.retention import prune, remove_files
from scheduling.actions.rounds import run_round
from scheduling.actions.secrets import create_secret, delete_secret, replace_secret
from scheduling.actions.volumes import grant_volume, withdraw_volume

__all__ = [
    "apply_observations",
    "attach_cluster",
    "bill_running",
    "cancel_job",
    "check_cluster",
    "check_spec",
    "create_cluster",
    "create_secret",
    "declare_local_gpus",
    "declare_node",
    "delete_secret",
    "detach_cluster",
    "drain_node",
    "grant_volume",
    "note_remarks",
    "pause_cluster",
    "perform_operations",
    "prune",
    "remove_files",
    "remove_node",
    "replace_kubeconfig",
    "replace_secret",
    "resume_cluster",
    "return_node",
    "run_round",
    "submit_job",
    "update_cluster",
    "withdraw_volume",
]
