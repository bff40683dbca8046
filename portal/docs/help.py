"""Maps each page of the portal to the section of the documentation to which the page's `?` links."""

from __future__ import annotations

from portal.docs import library

# Maps the name of a URL to "page#anchor". A name without an entry uses the entry of the name up to its last underscore.
HELP = {
    "home": "README",
    "docs": "README",
    "docs_page": "README",
    "password_change": "operate#lift-a-lock-from-a-login",
    "preferences": "jobs#choose-the-order-of-your-jobs",
    "own_limits": "limits#see-your-own-limits",
    "tokens": "jobs#call-the-api",
    "token_terminal": "cli#log-in",
    "secrets": "jobs#keep-a-secret",
    "secret": "jobs#keep-a-secret",
    "jobs": "jobs#find-jobs-in-the-list",
    "jobs_views": "jobs#save-a-view-of-the-list",
    "job": "jobs#follow-a-job",
    "job_edit": "jobs#change-a-job",
    "jobs_selected": "jobs#change-several-jobs-at-once",
    "job_log": "jobs#read-the-log",
    "job_metrics": "metrics",
    "job_file": "jobs#get-the-files-of-a-job",
    "job_files": "jobs#get-the-files-of-a-job",
    "job_terminal": "jobs#open-a-terminal-in-a-job",
    "storage": "jobs#see-what-takes-space",
    "notifications": "notifications#read-notifications",
    "notification_settings": "notifications#choose-what-you-want-to-know",
    "job_spec": "jobs#job-specification",
    "job_compare": "jobs#clone-a-job-and-compare-jobs",
    "job_bill": "accounting#what-is-booked",
    "submit": "jobs#submit-a-job",
    "drafts": "templates#keep-a-draft",
    "templates": "templates#use-a-template",
    "template": "templates#use-a-template",
    "template_new": "templates#write-a-template",
    "template_edit": "templates#publish-a-new-version-or-withdraw",
    "sessions": "sessions#start-a-session",
    "session_new": "sessions#start-a-session",
    "session": "sessions#keep-a-session-running",
    "services": "services#create-a-service",
    "service_new": "services#create-a-service",
    "service": "services#roll-out-a-revision",
    "sweeps": "sweeps#create-a-sweep",
    "sweep_new": "sweeps#create-a-sweep",
    "sweep": "sweeps#compare-the-members",
    "pipelines": "pipelines#follow-a-pipeline",
    "pipeline_new": "pipelines#submit-a-pipeline",
    "pipeline": "pipelines#run-again",
    "schedules": "schedules#create-a-schedule",
    "schedule_new": "schedules#create-a-schedule",
    "schedule": "schedules#missed-and-overlapping-runs",
    "schedule_edit": "schedules#choose-the-times",
    "cluster": "scheduling#read-the-gpu-map",
    "cluster_consumers": "scheduling#see-who-holds-what",
    "share": "team#see-your-teams-share",
    "share_anomalies": "anomalies",
    "trades": "team#allow-or-limit-trades",
    "trade_limits": "team#allow-or-limit-trades",
    "usage": "accounting#reports",
    "usage_statement": "accounting#statements",
    "usage_report": "accounting#receive-reports-by-mail",
    "usage_idle": "idle",
    "usage_fairness": "accounting#fairness",
    "usage_capacity": "accounting#closed-hours",
    "usage_operations": "exports#usage--operations",
    "usage_export": "exports#export-jobs-for-other-tools",
    "requests": "limits#answer-a-request",
    "request": "limits#answer-a-request",
    "request_new": "limits#ask-for-tickets-or-limits",
    "teams": "team",
    "team": "team",
    "team_member": "team#add-a-member",
    "team_member_leaving": "team#remove-a-member",
    "team_invitation": "team#invite-people",
    "invitation": "team#invite-people",
    "team_budget": "limits#set-a-budget",
    "admin_tenants": "operate#create-a-team",
    "admin_tenant": "operate#create-a-team",
    "admin_member": "team#add-a-member",
    "admin_member_leaving": "team#remove-a-member",
    "admin_quota": "limits#set-a-limit",
    "admin_budget": "limits#set-a-budget",
    "admin_users": "operate#create-a-user",
    "admin_user": "operate#create-a-user",
    "admin_locks": "operate#lift-a-lock-from-a-login",
    "admin_lock": "operate#lift-a-lock-from-a-login",
    "admin_generations": "operate#set-a-price",
    "admin_price": "operate#set-a-price",
    "admin_clusters": "operate#attach-a-kubernetes-cluster",
    "admin_cluster": "operate#attach-a-kubernetes-cluster",
    "admin_cluster_policy": "scheduling#choose-a-policy",
    "admin_cluster_drain": "operate#drain-a-node",
    "admin_cluster_volume": "jobs#use-a-volume",
    "admin_nodes": "operate#drain-a-node",
    "admin_node": "operate#drain-a-node",
    "admin_settings": "scheduling#settings-of-a-cluster",
    "reservations": "operate#reserve-gpus-in-advance",
    "reservation": "operate#reserve-gpus-in-advance",
    "reservation_new": "operate#reserve-gpus-in-advance",
    "admin_announcements": "operate#announce-something",
    "admin_announcement": "operate#announce-something",
    "announcement_dismiss": "operate#announce-something",
    "admin_audit": "permissions",
    "openapi-view": "jobs#call-the-api",
}


def entry_for(url_name: str | None) -> str:
    """Returns the documentation section for the page with this URL name, as "page#anchor" or "page"; "" if there is
    none."""
    name = url_name or ""
    while name and name not in HELP:
        name = name.rpartition("_")[0]
    return HELP.get(name, "")


def help_address(url_name: str | None) -> str:
    """Returns the URL of the documentation section for the page with this URL name, or the URL of the index if there is
    none."""
    page, hash_sign, anchor = (entry_for(url_name) or library.INDEX).partition("#")
    return f"{library.address_of_page(page)}{hash_sign}{anchor}"
