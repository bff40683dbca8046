from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import path, re_path

from portal.access import permitted
from portal.administration import (
    budgets,
    clusters,
    departures,
    drains,
    hardware,
    idle,
    limits,
    members,
    nodes,
    people,
    policy,
    team,
    tenants,
    trail,
    volumes,
)
from portal.administration.place import ADMINS, both
from portal.user_request import UserRequest


@permitted("cluster.read")
def administration(request: UserRequest) -> HttpResponse:
    """Redirects to the first page of the administration that the user may open."""
    return redirect("admin_tenants" if request.user.is_admin else "admin_nodes")


urlpatterns = [
    path("admin/", administration, name="administration"),
    path("admin/tenants/", tenants.tenants, name="admin_tenants"),
    path("admin/tenants/new/create/", tenants.create, name="admin_tenant_create"),
    path("admin/tenants/new/effect/", tenants.effect_of_making, name="admin_tenant_new_effect"),
    re_path(
        r"^admin/tenants/(?P<slug>[-\w]+)/effect/(?P<verb>tickets|move)/$",
        tenants.effect_of_changing,
        name="admin_tenant_effect",
    ),
    path(ADMINS.route("tickets/"), tenants.tickets, name="admin_tenant_tickets"),
    path(ADMINS.route("tickets/preview/"), tenants.preview_tickets, name="admin_tenant_tickets_preview"),
    path(ADMINS.route("settings/"), tenants.settings, {"place": ADMINS}, name="admin_tenant_settings"),
    path(ADMINS.route("idle/"), idle.of_tenant, {"place": ADMINS}, name="admin_tenant_idle"),
    re_path(
        r"^admin/tenants/(?P<slug>[-\w]+)/(?P<verb>rename|move|archive|restore|delete)/$",
        tenants.change,
        {"place": ADMINS},
        name="admin_tenant_change",
    ),
    path("team/", team.teams, name="teams"),
    *both("", members.members, ""),
    *both("members/add/", members.add_member, "member_add"),
    *both("members/<int:pk>/change/", members.change_member, "member_change"),
    *both("members/<int:pk>/preview/", members.preview_member, "member_preview"),
    *both("members/<int:pk>/leaving/", departures.leaving, "member_leaving"),
    *both("members/<int:pk>/remove/", departures.remove, "member_remove"),
    *both("limits/", limits.limits, "limits"),
    *both("limits/set/", limits.set_limit, "limit_set"),
    *both("limits/preview/", limits.preview_limit, "limit_preview"),
    *both("limits/<int:pk>/remove/", limits.remove_limit, "limit_remove"),
    *both("limits/<int:pk>/remove/preview/", limits.preview_removal, "limit_remove_preview"),
    *both("budgets/", budgets.budgets, "budgets"),
    *both("budgets/set/", budgets.set_budget, "budget_set"),
    *both("budgets/<int:pk>/remove/", budgets.remove_budget, "budget_remove"),
    *both("changes/", team.changes, "changes"),
    *both("changes/<str:form>", team.changes_file, "changes_file"),
    path("admin/users/", people.users, name="admin_users"),
    path("admin/users/create/", people.create, name="admin_user_create"),
    path("admin/users/<int:pk>/", people.user, name="admin_user"),
    path("admin/users/<int:pk>/teams/add/", people.join, name="admin_user_join"),
    path("admin/users/<int:pk>/password/", people.reset_password, name="admin_user_password"),
    path(
        "admin/users/<int:pk>/tokens/<int:token_id>/revoke/", people.revoke_token, name="admin_token_revoke"
    ),
    re_path(
        r"^admin/users/(?P<pk>\d{1,18})/(?P<verb>role|details|deactivate|reactivate|settle)/$",
        people.change,
        name="admin_user_change",
    ),
    path("admin/locks/", people.locks, name="admin_locks"),
    path("admin/locks/<int:pk>/lift/", people.lift, name="admin_lock_lift"),
    path("admin/generations/", hardware.generations, name="admin_generations"),
    path("admin/generations/create/", hardware.create_generation, name="admin_generation_create"),
    path("admin/generations/<int:pk>/price/", hardware.set_price, name="admin_price_set"),
    path("admin/prices/<int:pk>/remove/", hardware.remove_price, name="admin_price_remove"),
    path("admin/generations/<int:pk>/delete/", hardware.delete_generation, name="admin_generation_delete"),
    path("admin/clusters/", clusters.clusters, name="admin_clusters"),
    path("admin/clusters/attach/", clusters.attach, name="admin_cluster_attach"),
    path("admin/clusters/<int:pk>/", clusters.cluster, name="admin_cluster"),
    path("admin/clusters/<int:pk>/check/", clusters.check, name="admin_cluster_check"),
    path("admin/clusters/<int:pk>/kubeconfig/", clusters.replace, name="admin_cluster_kubeconfig"),
    path("admin/clusters/<int:pk>/reachable/", clusters.reachable, name="admin_cluster_reachable"),
    path("admin/clusters/<int:pk>/bare-pods/", clusters.bare_pods, name="admin_cluster_bare_pods"),
    path("admin/clusters/<int:pk>/metrics/", idle.metrics, name="admin_cluster_metrics"),
    path("admin/clusters/<int:pk>/idle/", idle.of_cluster, name="admin_cluster_idle"),
    path("admin/clusters/<int:pk>/detach/", clusters.detach, name="admin_cluster_detach"),
    path("admin/clusters/<int:pk>/volumes/grant/", volumes.grant, name="admin_cluster_volume_grant"),
    path(
        "admin/clusters/<int:pk>/volumes/<int:volume_id>/withdraw/",
        volumes.withdraw,
        name="admin_cluster_volume_withdraw",
    ),
    path("admin/nodes/", nodes.nodes, name="admin_nodes"),
    path("admin/clusters/<int:pk>/drain/", drains.drain_several, name="admin_cluster_drain"),
    path("admin/clusters/<int:pk>/return/", drains.return_several, name="admin_cluster_return"),
    path("admin/nodes/<int:pk>/drain/", nodes.drain, name="admin_node_drain"),
    path("admin/nodes/<int:pk>/return/", nodes.put_back, name="admin_node_return"),
    path("admin/nodes/<int:pk>/remove/", nodes.remove, name="admin_node_remove"),
    path("admin/clusters/<int:pk>/declare/", nodes.declare, name="admin_node_declare"),
    re_path(
        r"^admin/clusters/(?P<pk>\d{1,18})/(?P<verb>pause|resume)/$",
        nodes.pause,
        name="admin_cluster_pause",
    ),
    path("admin/settings/", nodes.cluster_settings, name="admin_settings"),
    path("admin/clusters/<int:pk>/settings/", nodes.change_settings, name="admin_settings_change"),
    path("admin/clusters/<int:pk>/settings/preview/", nodes.preview_settings, name="admin_settings_preview"),
    path("admin/clusters/<int:pk>/policy/", policy.policy, name="admin_cluster_policy"),
    path("admin/clusters/<int:pk>/policy/preview/", policy.preview, name="admin_cluster_policy_preview"),
    path("admin/clusters/<int:pk>/policy/change/", policy.change, name="admin_cluster_policy_change"),
    path("admin/clusters/<int:pk>/policy/shadow/", policy.shadow, name="admin_cluster_policy_shadow"),
    path("admin/settings/idle/", idle.of_all, name="admin_settings_idle"),
    path("admin/settings/idle/team/", idle.of_some_team, name="admin_settings_idle_team"),
    path("admin/audit/", trail.audit, name="admin_audit"),
    path("admin/audit/<str:form>", trail.export, name="admin_audit_file"),
]
