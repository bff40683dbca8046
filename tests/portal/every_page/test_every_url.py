"""Requests every URL as every user and compares the HTTP status with a table.

A URL that the table lacks fails a test.
"""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.http import HttpResponseBase
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from accounting.core.clock import now_from_database
from accounting.models import User
from portal.docs.help import entry_for
from scheduling.advance.actions import reserve_in_advance
from scheduling.advance.proposals import Terms
from scheduling.announcements.actions import announce
from scheduling.models import AdvanceReservation, Announcement, Draft, JobTemplate, Pipeline, Session, Sweep
from tests.portal.scene import SECRETS, Scene, with_a_session

ANONYMOUS, ALICE, BOB, CHARLIE, OLGA, ADA = WHO = ("anonymous", "alice", "bob", "charlie", "olga", "ada")

PAGE = dict.fromkeys(WHO, 200) | {ANONYMOUS: 302}  # for all signed-in users
BOBS = dict.fromkeys(WHO, 404) | {ANONYMOUS: 302, BOB: 200}
OPEN = dict.fromkeys(WHO, 200)  # also for users who are not signed in
ASTRO = PAGE | {CHARLIE: 404}  # an object of Astro, which Charlie may not see
API = dict.fromkeys(WHO, 200) | {ANONYMOUS: 401}
API_ASTRO = API | {CHARLIE: 404}
OPERATORS = dict.fromkeys(WHO, 404) | {ANONYMOUS: 302, OLGA: 200, ADA: 200}
ADMINS = OPERATORS | {OLGA: 404}
API_OPERATORS = dict.fromkeys(WHO, 404) | {ANONYMOUS: 401, OLGA: 200, ADA: 200}
API_MANAGER = API_OPERATORS | {ALICE: 200}
MANAGER = dict.fromkeys(WHO, 404) | {ANONYMOUS: 302, ALICE: 200}
ASKERS = OPERATORS | {ALICE: 200}
ASKERS_POSTED = dict.fromkeys(WHO, 302)
POSTED = dict.fromkeys(WHO, 405) | {ANONYMOUS: 302}  # GET is refused before the view looks for the object
ADMINS_POSTED = dict.fromkeys(WHO, 404) | {ANONYMOUS: 302, ADA: 302}  # GET redirects to the form's page
OPERATORS_POSTED = ADMINS_POSTED | {OLGA: 302}
API_POSTED = dict.fromkeys(WHO, 405)
API_TOKENS = dict.fromkeys(WHO, 401)
NOWHERE = dict.fromkeys(WHO, 404)
MOVED = dict.fromkeys(WHO, 302)
ASTRO_MOVED = {who: 302 if status == 200 else status for who, status in ASTRO.items()}

NO_TERMINAL = "00000000-0000-4000-8000-000000000000"

# The expected status of GET by URL name and user; "?…" is a query that the page needs.
EXPECTED: dict[str, dict[str, int]] = {
    "home": PAGE,
    "docs": PAGE,
    "docs?q=drain": PAGE,
    "docs_page": PAGE,
    "docs_picture": PAGE,
    "login": MOVED | {ANONYMOUS: 200},
    "logout": POSTED,
    "password_change": PAGE,
    "password_change_done": MOVED,
    "own_limits": PAGE,
    "preferences": PAGE,
    "live?topics=job:{job}": ASTRO,
    "healthz": OPEN,
    "security_txt": NOWHERE,  # the setting has no contact
    "tokens": PAGE,
    "token_terminal": PAGE,
    "revoke_token": POSTED,
    "revoke_all_tokens": POSTED,
    "secrets": PAGE,
    "secret": MANAGER,
    "secret_delete": MOVED,
    "notifications": PAGE,
    "notifications?show=unread": PAGE,
    "notification_bell": PAGE,
    "notifications_mark": POSTED,
    "notification_open": POSTED,
    "notification_settings": PAGE,
    "notification_rule_remove": MOVED,
    "notification_channel_save": MOVED,
    "notification_channel_test": MOVED,
    "notification_channel_remove": MOVED,
    "job_follow": POSTED,
    "jobs": PAGE,
    "jobs_selected": MOVED,
    "sweeps_selected": MOVED,
    "schedules_selected": MOVED,
    "jobs_columns": MOVED,
    "jobs_views": PAGE,
    "jobs_view_remove": MOVED,
    "jobs_view_default": MOVED,
    "job": ASTRO,
    "job_edit": ASTRO,
    "job_log": ASTRO,
    "job_log_stream": ASTRO,
    "job_log_piece?rank=0&end=1": ASTRO,
    "job_log_search?q=step": ASTRO,
    "job_log_raw": ASTRO,
    "job_metrics": ASTRO,
    "job_files": ASTRO,
    "job_file": ASTRO,
    "job_file_raw?path=work/nothing": NOWHERE | {ANONYMOUS: 302},
    "job_file_image?path=work/nothing": NOWHERE | {ANONYMOUS: 302},
    "job_files_archive": ASTRO,
    "job_terminal": ASTRO,
    "job_terminal_end": POSTED,
    "job_results": ASTRO,
    "job_files_delete": POSTED,
    "storage": PAGE,
    "storage?mine=1": PAGE,
    "storage?team=astro": ASTRO,
    "job_events": ASTRO,
    "job_spec": ASTRO,
    "job_compare": ASTRO,
    "job_compare_with": ASTRO_MOVED,
    "job_bill": ASTRO,
    "job_bill_correct": ADMINS_POSTED,
    "job_cancel": POSTED,
    "job_remedy": POSTED,
    "job_sharing": POSTED,
    "job_snooze": MOVED,
    "submit": PAGE,
    "submit?clone={job}": ASTRO,
    "submit?sent=unknown": PAGE,
    "convert_spec": POSTED,
    "job_schema": OPEN,
    "sessions": PAGE,
    "sessions_columns": MOVED,
    "sessions_views": PAGE,
    "sessions_view_remove": MOVED,
    "sessions_view_default": MOVED,
    "session_new": PAGE,
    "session": ASTRO,
    "session_open": MOVED | {CHARLIE: 404, OLGA: 403, ADA: 403},
    "session_keep": POSTED,
    "session_stop": POSTED,
    "services": PAGE,
    "services_columns": MOVED,
    "services_views": PAGE,
    "services_view_remove": MOVED,
    "services_view_default": MOVED,
    "service_new": PAGE,
    "service": ASTRO,
    "service_log": ASTRO,
    "service_log_raw": ASTRO,
    "service_open": MOVED | {CHARLIE: 404},
    "service_update": ASTRO,
    "service_scale": MOVED,
    "service_rollouts": MOVED,
    "service_allow_missing": POSTED,
    "service_stop": POSTED,
    "service_start": POSTED,
    "service_rollback": POSTED,
    "service_remove": POSTED,
    "pipelines": PAGE,
    "pipelines_columns": MOVED,
    "pipelines_views": PAGE,
    "pipelines_view_remove": MOVED,
    "pipelines_view_default": MOVED,
    "pipeline_new": PAGE,
    "pipeline_preview": POSTED,
    "pipeline_new?job={job}": ASTRO,
    "pipeline": ASTRO,
    "pipeline_cancel": POSTED,
    "pipeline_run_again": POSTED,
    "templates": PAGE,
    "templates?q=train&for=all": PAGE,
    "template": ASTRO,
    "template?version=1": ASTRO,
    "template_new": MANAGER | {ADA: 200},
    "template_new?job={job}": MANAGER | {ADA: 200},
    "template_edit": MANAGER | {ADA: 200},
    "template_use": ASTRO,
    "template_withdraw": POSTED,
    "drafts": PAGE,
    "draft_delete": POSTED,
    "submit?draft={draft}": BOBS,
    "sweeps": PAGE,
    "sweeps_columns": MOVED,
    "sweeps_views": PAGE,
    "sweeps_view_remove": MOVED,
    "sweeps_view_default": MOVED,
    "sweep_new": PAGE,
    "sweep_new?job={job}": ASTRO,
    "sweep_preview": POSTED,
    "sweep": ASTRO,
    "sweep_csv": ASTRO,
    "sweep_cancel": POSTED,
    "sweep_run_failed": POSTED,
    "schedules": PAGE,
    "schedules_columns": MOVED,
    "schedules_views": PAGE,
    "schedules_view_remove": MOVED,
    "schedules_view_default": MOVED,
    "schedule_new": PAGE,
    "schedule_new?job={job}": ASTRO,
    "schedule_preview": POSTED,
    "schedule": ASTRO,
    "schedule_edit": ASTRO,
    "schedule_run": POSTED,
    "schedule_pause": POSTED,
    "schedule_resume": POSTED,
    "schedule_delete": POSTED,
    "cluster": PAGE,
    "cluster?team=astro&by=user": ASTRO,
    "cluster_consumers": PAGE,
    "cluster_consumers?period=week&team=astro": ASTRO,
    "share": PAGE,
    "share?team=astro": ASTRO,
    "share_anomalies": PAGE,
    "share_anomalies?team=astro": ASTRO,
    "share_anomalies_file": NOWHERE | {ANONYMOUS: 302},  # there is no analysis yet
    "share_analyse": OPERATORS_POSTED,
    "share_analyse_again": OPERATORS_POSTED,
    "trades": PAGE,
    "trades?team=astro": ASTRO,
    "trades_file": PAGE,
    "trades_file?team=astro": ASTRO,
    "trade_limits": MANAGER | {ADA: 200},
    "trades?run={trade}": PAGE,  # Charlie's team is the other side of the trade
    "usage": PAGE,
    "usage?team=astro&by=job": ASTRO,
    "usage_file": PAGE,
    "usage?team=astro&by=label&label=project": ASTRO,
    "usage_statement": PAGE,
    "usage_report_subscribe": POSTED,
    "usage_report_unsubscribe": POSTED,
    "usage_statement?team=astro": ASTRO,
    "usage_statement_csv?team=astro": ASTRO,
    "usage_statement_csv?team=astro&part=lines": ASTRO,
    "usage_statement_xlsx?team=astro": ASTRO,
    "usage_statement_pdf?team=astro": ASTRO,
    "usage_statement_json?team=astro": ASTRO,
    "usage_idle": PAGE,
    "usage_idle?team=astro": ASTRO,
    "usage_idle_file": PAGE,
    "usage_idle_file?team=astro": ASTRO,
    "usage_fairness": PAGE,
    "usage_fairness?team=astro": ASTRO,
    "usage_fairness_file": PAGE,
    "usage_fairness_file?team=astro": ASTRO,
    "usage_generation_weight": OPERATORS_POSTED,
    "usage_capacity": OPERATORS,
    "usage_capacity_file": OPERATORS,
    "usage_operations": OPERATORS,
    "usage_operations_subject": OPERATORS,
    "usage_operations_file": OPERATORS,
    "usage_chargeback_file": OPERATORS,
    "usage_export": OPERATORS | {ALICE: 200},
    "usage_export?team=astro": OPERATORS | {ALICE: 200},
    "usage_file?team=astro": ASTRO,
    "administration": OPERATORS | {OLGA: 302, ADA: 302},
    "admin_tenants": ADMINS,
    "admin_tenant_create": ADMINS_POSTED,
    "admin_tenant_new_effect": ADMINS_POSTED,
    "admin_tenant_effect": ADMINS_POSTED,
    "admin_tenant": ADMINS,
    "admin_tenant_tickets": ADMINS_POSTED,
    "admin_tenant_settings": ADMINS,
    "admin_tenant_invitations": ADMINS,
    "admin_tenant_limits": ADMINS,
    "admin_tenant_budgets": ADMINS,
    "admin_tenant_changes": ADMINS,
    "admin_tenant_changes_file": ADMINS,
    "admin_tenant_invitation_create": ADMINS_POSTED,
    "admin_tenant_invitation_revoke": ADMINS_POSTED,
    "admin_tenant_member_add": ADMINS_POSTED,
    "admin_tenant_member_change": ADMINS_POSTED,
    "admin_tenant_member_leaving": ADMINS,
    "admin_tenant_member_remove": ADMINS_POSTED,
    "admin_tenant_limit_set": ADMINS_POSTED,
    "admin_tenant_limit_remove": ADMINS_POSTED,
    "requests": ASKERS,
    "request": ASKERS,
    "request_approve": ASKERS_POSTED,
    "request_preview": ASKERS_POSTED,
    "request_close": ASKERS_POSTED,
    "request_extend": ASKERS_POSTED,
    "request_new": MANAGER,
    "request_ask": MOVED,
    "request_ask_preview": MOVED,
    "admin_tenant_limit_preview": ADMINS_POSTED,
    "admin_tenant_limit_remove_preview": ADMINS_POSTED,
    "admin_tenant_idle": ADMINS_POSTED,
    "admin_cluster_idle": OPERATORS_POSTED,
    "admin_settings_idle_team": OPERATORS_POSTED,
    "admin_cluster_metrics": ADMINS_POSTED,
    "admin_settings_idle": OPERATORS_POSTED,
    "admin_tenant_budget_set": ADMINS_POSTED,
    "admin_tenant_budget_remove": ADMINS_POSTED,
    "admin_tenant_tickets_preview": ADMINS_POSTED,
    "admin_tenant_member_preview": ADMINS_POSTED,
    "admin_tenant_change": ADMINS_POSTED,
    "admin_users": ADMINS,
    "admin_locks": ADMINS,
    "admin_lock_lift": ADMINS_POSTED,
    "admin_user_create": ADMINS_POSTED,
    "admin_user": ADMINS,
    "admin_user_password": ADMINS_POSTED,
    "admin_user_join": ADMINS_POSTED,
    "admin_token_revoke": ADMINS_POSTED,
    "admin_user_change": ADMINS_POSTED,
    "admin_generations": ADMINS,
    "admin_generation_create": ADMINS_POSTED,
    "admin_price_set": ADMINS_POSTED,
    "admin_generation_delete": ADMINS_POSTED,
    "admin_price_remove": ADMINS_POSTED,
    "admin_clusters": OPERATORS,
    "admin_cluster": OPERATORS,
    "admin_cluster_attach": ADMINS_POSTED,
    "admin_cluster_check": OPERATORS_POSTED,
    "admin_cluster_kubeconfig": ADMINS_POSTED,
    "admin_cluster_detach": ADMINS_POSTED,
    "admin_cluster_reachable": ADMINS_POSTED,
    "admin_cluster_bare_pods": ADMINS_POSTED,
    "admin_cluster_volume_grant": OPERATORS_POSTED,
    "admin_cluster_volume_withdraw": OPERATORS_POSTED,
    "admin_nodes": OPERATORS,
    "admin_node_drain": OPERATORS,
    "reservations": PAGE,
    "reservation": ASTRO,
    "reservation_new": OPERATORS,
    "reservation_change": OPERATORS_POSTED,
    "reservation_cancel": OPERATORS_POSTED,
    "admin_announcements": OPERATORS,
    "admin_announcement": OPERATORS,
    "admin_announcement_create": OPERATORS_POSTED,
    "admin_announcement_change": OPERATORS_POSTED,
    "announcement_dismiss": POSTED,
    "admin_cluster_drain": OPERATORS,
    "admin_cluster_return": OPERATORS_POSTED,
    "admin_node_return": OPERATORS_POSTED,
    "admin_node_remove": ADMINS_POSTED,
    "admin_node_declare": ADMINS_POSTED,
    "admin_cluster_pause": OPERATORS_POSTED,
    "admin_settings": OPERATORS,
    "admin_settings_change": ADMINS_POSTED,
    "admin_settings_preview": ADMINS_POSTED,
    "admin_cluster_policy": OPERATORS,
    "admin_cluster_policy_preview": ADMINS_POSTED,
    "admin_cluster_policy_change": ADMINS_POSTED,
    "admin_cluster_policy_shadow": ADMINS_POSTED,
    "admin_audit": OPERATORS,
    "admin_audit?q=super&target=astro&actor=ada&kind=members&from=2026-01-01&to=soon": OPERATORS,
    "admin_audit_file": OPERATORS,
    "teams": MANAGER | {ALICE: 302},
    "team": MANAGER,
    "team_invitations": MANAGER,
    "team_limits": MANAGER,
    "team_budgets": MANAGER,
    "team_changes": MANAGER,
    "team_changes_file": MANAGER,
    "invitation": NOWHERE,  # no invitation has this token
    "team_invitation_create": MOVED,
    "team_invitation_revoke": MOVED,
    "team_member_change": MOVED,
    "team_member_add": MOVED,
    "team_member_leaving": MANAGER,
    "team_member_remove": MOVED,
    "team_limit_set": MOVED,
    "team_limit_remove": MOVED,
    "team_limit_preview": MOVED,
    "team_limit_remove_preview": MOVED,
    "team_budget_set": MOVED,
    "team_budget_remove": MOVED,
    "team_member_preview": MOVED,
    "api-1:jobs_groups?by=team": API,
    "api-1:views": API,
    "api-1:view": API_POSTED,
    "api-1:openapi-json": API,
    "api-1:openapi-view": PAGE,
    "api-1:jobs": API,
    "api-1:preflight": API_POSTED,
    "api-1:login_begin": API_POSTED,
    "api-1:login_token": API_POSTED,
    "api-1:convert": API_POSTED,
    "api-1:code": API_POSTED,
    "api-1:job": API_ASTRO,
    "api-1:job_clone": API_POSTED,
    "api-1:job_cancel": API_POSTED,
    "api-1:jobs_bulk": API_POSTED,
    "api-1:services": API,
    "api-1:service": API_ASTRO,
    "api-1:service_rollback": API_POSTED,
    "api-1:service_events": API_ASTRO,
    "api-1:service_traffic": API_ASTRO,
    "api-1:service_log_lines": API_ASTRO,
    "api-1:sessions": API,
    "api-1:session": API_ASTRO,
    "api-1:session_keep": API_POSTED,
    "api-1:job_terminals": API_ASTRO,
    "api-1:job_terminal": API_POSTED,
    "api-1:pipelines": API,
    "api-1:pipeline": API_ASTRO,
    "api-1:pipeline_cancel": API_POSTED,
    "api-1:pipeline_run_again": API_POSTED,
    "api-1:templates": API,
    "api-1:template": API_ASTRO,
    "api-1:template_versions": API_POSTED,
    "api-1:template_withdraw": API_POSTED,
    "api-1:template_preview": API_POSTED,
    "api-1:template_submit": API_POSTED,
    "api-1:drafts": API,
    "api-1:draft": dict.fromkeys(WHO, 404) | {ANONYMOUS: 401, BOB: 200},
    "api-1:sweeps": API,
    "api-1:sweep": API_ASTRO,
    "api-1:sweep_members": API_ASTRO,
    "api-1:sweep_members?format=csv": API_ASTRO,
    "api-1:sweep_preview": API_POSTED,
    "api-1:sweep_cancel": API_POSTED,
    "api-1:sweep_run_failed": API_POSTED,
    "api-1:schedules": API,
    "api-1:schedule": API_ASTRO,
    "api-1:schedule_pause": API_POSTED,
    "api-1:schedule_resume": API_POSTED,
    "api-1:schedule_run": API_POSTED,
    "api-1:schedule_runs": API_ASTRO,
    "api-1:job_events": API_ASTRO,
    "api-1:job_log": API_ASTRO,
    "api-1:job_metrics": API_ASTRO,
    "api-1:job_log_lines": API_ASTRO,
    "api-1:job_log_events": API_ASTRO,
    "api-1:job_log_matches?q=step": API_ASTRO,
    "api-1:job_files": API_ASTRO,
    "api-1:job_files_content?path=work/nothing": dict.fromkeys(WHO, 404) | {ANONYMOUS: 401},
    "api-1:job_files_archive": API_ASTRO,
    "api-1:job_results": API_ASTRO,
    "api-1:job_results_archive": API_ASTRO,
    "api-1:storage": API,
    "api-1:storage?team=astro": API,
    "api-1:job_cost": API_ASTRO,
    "api-1:job_scheduling": API_ASTRO,
    "api-1:gpu_map": API,
    "api-1:holders?team=astro": API_ASTRO,
    "api-1:consumers?team=astro": API_ASTRO,
    "api-1:gpu_map_at_old_path": API,
    "api-1:clusters": API_OPERATORS,
    "api-1:one_cluster": API_OPERATORS,
    "api-1:cluster_check": API_POSTED,
    "api-1:cluster_kubeconfig": API_POSTED,
    "api-1:cluster_reachable": API_POSTED,
    "api-1:cluster_standalone_pods": API_POSTED,
    "api-1:cluster_standalone_pods_at_old_path": API_POSTED,
    "api-1:cluster_detach": API_POSTED,
    "api-1:node_drain": API_OPERATORS,
    "api-1:audit": API_MANAGER,
    "api-1:audit_file": API_MANAGER,
    "api-1:prices": API_OPERATORS | {OLGA: 404},
    "api-1:price": API_POSTED,
    "api-1:advance_reservations": API,
    "api-1:advance_reservation": API_ASTRO,
    "api-1:announcements": API,
    "api-1:announcements?every=true": API_OPERATORS,
    "api-1:announcement": API_POSTED,
    "api-1:announcement_dismiss": API_POSTED,
    "api-1:nodes_drain": API_POSTED,
    "api-1:nodes_return": API_POSTED,
    "api-1:requests": API,
    "api-1:request": API_MANAGER,
    "api-1:request_approve": API_POSTED,
    "api-1:request_decline": API_POSTED,
    "api-1:request_withdraw": API_POSTED,
    "api-1:teams": API_POSTED,
    "api-1:team_members": API_MANAGER | {OLGA: 404},
    "api-1:team_member": API_POSTED,
    "api-1:team_invitations": API_MANAGER | {OLGA: 404},
    "api-1:team_invitation": API_POSTED,
    "api-1:invitation_accept": API_POSTED,
    "api-1:team_tickets": API_POSTED,
    "api-1:team_parent": API_POSTED,
    "api-1:team_archived": API_POSTED,
    "api-1:limits?team=astro": API_MANAGER,
    "api-1:own_limits": API,
    "api-1:budgets?team=astro": API_MANAGER,
    "api-1:budget": API_POSTED,
    "api-1:work?team=astro": API_MANAGER | {OLGA: 404},
    "api-1:hand_over": API_POSTED,
    "api-1:limit": API_POSTED,
    "api-1:limits_preview": API_POSTED,
    "api-1:limit_removal_preview": API_POSTED,
    "api-1:tickets_preview": API_POSTED,
    "api-1:subscriptions": API,
    "api-1:subscription": API_POSTED,
    "api-1:notifications": API,
    "api-1:notifications?unread=true": API,
    "api-1:notifications_read": API_POSTED,
    "api-1:notification_events": API,
    "api-1:notification_rules": API,
    "api-1:notification_rule": API_POSTED,
    "api-1:notification_channels": API,
    "api-1:notification_channel": API_POSTED,
    "api-1:notification_channel_test": API_POSTED,
    "api-1:volumes": API,
    "api-1:cluster_volumes": API_POSTED,
    "api-1:cluster_policy": API_OPERATORS,
    "api-1:cluster_policy_preview": API_POSTED,
    "api-1:cluster_settings": API_OPERATORS,
    "api-1:cluster_policy_comparison": API_OPERATORS,
    "api-1:cluster_volume": API_POSTED,
    "api-1:secrets": API,
    "api-1:secret": API_POSTED,
    "api-1:me": API,
    "api-1:share?team=astro": API_ASTRO,
    "api-1:share_anomalies": API,
    "api-1:share_anomalies?team=astro": API_ASTRO,
    "api-1:share_analyse_again": API_POSTED,
    "api-1:trades": API,
    "api-1:booked_trades": API,
    "api-1:trade_limits?team=astro": API_ASTRO,
    "api-1:usage": API,
    "api-1:idle": API,
    "api-1:idle?team=astro": API_ASTRO,
    "api-1:idle_teams": API,
    "api-1:idle_teams?team=astro": API_ASTRO,
    "api-1:job_gpu_use": API_ASTRO,
    "api-1:job_preemptible": API_POSTED,
    "api-1:job_preemptible_at_old_path": API_POSTED,
    "api-1:job_snooze": API_POSTED,
    "api-1:idle_rules": API_OPERATORS,
    "api-1:idle_rules_preview": API_POSTED,
    "api-1:idle_rule": API_POSTED,
    "api-1:fairness": API,
    "api-1:fairness?team=astro": API_ASTRO,
    "api-1:fairness?format=csv": API,
    "api-1:capacity": API_OPERATORS,
    "api-1:statement": API,
    "api-1:statement?team=astro": API_ASTRO,
    "api-1:statement?team=astro&format=pdf": API_ASTRO,
    "api-1:operations": API_OPERATORS,
    "api-1:chargeback": API_OPERATORS,
    "api-1:export": API_MANAGER,
    "api-1:usage?team=astro": API_ASTRO,
    "api-1:usage?format=csv": API,
    "api-1:api-root": NOWHERE,
    # These take no session.
    "api-compatible:api-root": NOWHERE,
    "api-compatible:marathon_apps": API_TOKENS,
    "api-compatible:marathon_app": API_TOKENS,
    "api-compatible:marathon_tasks": API_TOKENS,
    "api-compatible:marathon_versions": API_TOKENS,
    "api-compatible:marathon_version": API_TOKENS,
    "api-compatible:marathon_restart": API_POSTED,
    "api-compatible:marathon_deployments": API_TOKENS,
    "api-compatible:marathon_deployment": API_POSTED,
    "api-compatible:marathon_groups": API_TOKENS,
    "api-compatible:marathon_group": API_TOKENS,
    "api-compatible:marathon_queue": API_TOKENS,
    "api-compatible:marathon_all_tasks": API_TOKENS,
    "api-compatible:marathon_info": API_TOKENS,
    "api-compatible:marathon_ping": API_TOKENS,
    "api-compatible:chronos_jobs": API_TOKENS,
    "api-compatible:chronos_summary": API_TOKENS,
    "api-compatible:chronos_dependency": API_POSTED,
    "api-compatible:chronos_stat": API_TOKENS,
    "api-compatible:chronos_stats": API_TOKENS,
    "api-compatible:chronos_dot": API_TOKENS,
    "api-compatible:chronos_search": API_TOKENS,
    "api-compatible:chronos_graph": API_TOKENS,
    "api-compatible:chronos_iso8601": API_POSTED,
    "api-compatible:chronos_job": API_TOKENS,
    "api-compatible:chronos_kill": API_POSTED,
    "api_not_found": NOWHERE,
}


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Returns the scene with a waiting session of Bob's."""
    return with_a_session(scene)


@pytest.fixture
def clients(scene: Scene) -> dict[str, Client]:
    found = {name: Client() for name in WHO}
    for name in WHO[1:]:
        found[name].force_login(User.objects.get(username=name), "django.contrib.auth.backends.ModelBackend")
    return found


def every_name(resolver: URLResolver, namespace: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from every_name(pattern, inner)
        else:
            yield f"{namespace}{pattern.name}", pattern


def arguments(scene: Scene, name: str, pattern: URLPattern) -> dict[str, object]:
    """Returns values for the parameters in the URL pattern `name`. They refer to objects of the scene, such as Astro's
    job."""
    keys = {
        "request": scene.request.pk,
        "service": scene.service.pk,
        "session": Session.objects.get().pk,
        "sweep": Sweep.objects.get().pk,
        "pipeline": Pipeline.objects.get().pk,
        "schedule": scene.schedule.pk,
        "job": scene.job.pk, "member": scene.membership.pk, "quota": scene.quota.pk, "token": scene.token.pk,
        "budget": 1,
        "limit": scene.quota.pk,
        "lock": 1,
        "draft": Draft.objects.get().pk,
        "template": JobTemplate.objects.get().pk,
        "invitation": 1,
        "announcement": announcement_in(scene),
        "reservation": reservation_in(scene),
        "unsubscribe": 1,
        "notification": 1,
        "node": scene.node.pk, "cluster": scene.world.cluster.pk, "settings": scene.world.cluster.pk,
        "secret": scene.team_secret.pk,
        "user": scene.people.bob.pk, "price": scene.people.a100.pk, "generation": scene.people.a100.pk,
    }  # fmt: skip
    subject = "node" if name == "admin_node_declare" else next((key for key in keys if key in name), "")
    verbs = re.search(r"\(\?P<verb>(\w+)", str(pattern.pattern))
    known = {
        "pk": keys.get(subject),
        "key": NO_TERMINAL,
        "terminal_id": NO_TERMINAL,
        "other": scene.waiting.pk,
        "job_id": scene.job.pk,
        "service_id": scene.service.pk,
        "session_id": Session.objects.get().pk,
        "sweep_id": Sweep.objects.get().pk,
        "pipeline_id": Pipeline.objects.get().pk,
        "draft_id": Draft.objects.get().pk,
        "template_id": JobTemplate.objects.get().pk,
        "schedule_id": scene.schedule.pk,
        "slug": "astro",
        "username": "bob",
        "name": {"docs_page": "jobs", "docs_picture": "screenshot.png"}.get(name, scene.world.cluster.name),
        "verb": verbs and verbs.group(1),
        "node": scene.node.name,
        "team": "astro",
        "user": "bob",
        "rest": "v1/nothing",
        "app_id": scene.service.name,
        "group_id": "vision",
        "deployment_id": "1",
        "version": "2030-01-01T00:00:00.000Z",
        "which": "median",
        "secret_id": scene.team_secret.pk,
        "rule_id": 1,
        "channel_id": 1,
        "volume_id": scene.volume.pk,
        "limit_id": scene.quota.pk,
        "budget_id": 1,
        "subscription_id": 1,
        "view_id": 1,
        "invitation_id": 1,
        "price_id": 1,
        "token_id": scene.token.pk,
        "announcement_id": announcement_in(scene),
        "reservation_id": reservation_in(scene),
        "token": "unknown",
        "request_id": scene.request.pk,
        "analysis_id": 1,
        "subject": "chargeback" if "chargeback" in name else "waste",
        "form": "audit.csv"
        if "audit" in name or "changes" in name
        else "jobs.csv"
        if "export" in name
        else "csv",
    }
    return {asked: known[asked] for asked in pattern.pattern.regex.groupindex}


def reservation_in(scene: Scene) -> int:
    """Returns the key of an advance reservation for Astro, which it makes if there is none."""
    found = AdvanceReservation.objects.first()
    if found is None:
        begins = now_from_database() + timedelta(days=2)
        terms = Terms(
            name="supernova course",
            tenant=scene.people.astro,
            generation=scene.people.v100,
            begins=begins,
            ends=begins + timedelta(hours=1),
            gpus=1,
        )
        cluster = scene.world.cluster
        found = reserve_in_advance(actor=scene.people.olga, cluster=cluster, terms=terms)
    return found.pk


def announcement_in(scene: Scene) -> int:
    """Returns the key of an announcement to operators, which it makes if there is none."""
    found = Announcement.objects.first()
    return (found or announce(actor=scene.people.olga, text="new switch", roles=["operator"])).pk


def walk(scene: Scene) -> Iterator[tuple[str, str]]:
    """Yields (key, URL) for each key of EXPECTED."""
    patterns = dict(every_name(get_resolver()))
    for key in EXPECTED:
        name, _, query = key.partition("?")
        url = reverse(name, kwargs=arguments(scene, name, patterns[name]))
        yield (
            key,
            f"{url}?{query.format(job=scene.job.pk, trade=scene.trade.pk, draft=Draft.objects.get().pk)}"
            if query
            else url,
        )


CSRF_TOKEN = re.compile(r"\b[0-9A-Za-z]{64}\b")


def text_of(response: HttpResponseBase) -> str:
    """Returns the text of a response without random CSRF tokens; empty for a stream, which may be endless."""
    if response.streaming:
        return ""
    return CSRF_TOKEN.sub("", response.content.decode("utf-8", "replace"))


def is_page(response: HttpResponseBase) -> bool:
    """Returns whether the response is a whole page: only such pages have the top bar, which contains the help link."""
    return response.status_code == 200 and not response.streaming and b'class="topbar"' in response.content


def test_no_url_is_missing_in_the_table() -> None:
    names = {name for name, _ in every_name(get_resolver())}
    assert names == {key.partition("?")[0] for key in EXPECTED}


def test_each_user_gets_what_the_table_says_charlie_reads_no_name_of_astros_and_pages_have_help(
    scene: Scene, clients: dict[str, Client]
) -> None:
    """Each response has the status in the table, Charlie's contain none of the names that only Astro may see, and pages
    have a help link.

    Bob's pages must contain some of these names. If they did not, the check of Charlie's pages would prove nothing.
    """
    secret = re.compile(rf"\b({'|'.join(SECRETS)})")
    wrong, leaks, shown = [], [], ""
    # One loop for all checks, because requesting all URLs is slow.
    for key, url in walk(scene):
        for who, client in clients.items():
            response = client.get(url)
            if response.status_code != EXPECTED[key][who]:
                wrong.append(f"{key} for {who}: {response.status_code}, not {EXPECTED[key][who]}")
            if is_page(response) and not entry_for(response.resolver_match.url_name):
                wrong.append(f"{key} for {who}: no section of the documentation in portal/docs/help.py")
            # Links repeat the query of the requested URL, which contains a team's slug that the reader typed.
            text = text_of(response).replace("team=astro", "") if who in {BOB, CHARLIE} else ""
            if who == CHARLIE:
                leaks += [
                    f"{key}: …{text[max(0, m.start() - 60) : m.end() + 40]}…" for m in secret.finditer(text)
                ]
            shown += text if who == BOB else ""
    assert wrong == []
    assert leaks == []
    assert {"supernova", "alice", "Astro"} <= {name for name in SECRETS if name in shown}
