"""Which tests run one after another in one process when pytest-xdist spreads them."""

from xdist.scheduler import LoadScopeScheduling

# Whole portals, which wait more than they work. pytest-xdist begins with what has most tests: these.
LANES: dict[str, tuple[str, ...]] = {
    "figures": ("tests/proof/test_fairness.py",),
    "crashes": ("tests/ground/test_up.py", "tests/proof/test_crashes.py"),
    "browser": ("tests/proof/test_browser.py",),
    "attacks": ("tests/attack/test_attacks.py",),
    # One control plane for all, which some of them crash.
    "cluster": (
        "tests/cluster/test_controlplane.py",
        "tests/cluster/test_api_facts.py",
        "tests/cluster/test_reflector.py",
        "tests/cluster/test_gangs.py",
        "tests/cluster/test_orders.py",
        "tests/cluster/test_bare_pods.py",
        "tests/cluster/test_podgroups.py",
        "tests/cluster/test_older_servers.py",
        "tests/cluster/test_discovery.py",
        "tests/cluster/test_attaching.py",
        "tests/cluster/test_namespaces.py",
        "tests/cluster/test_rights.py",
        "tests/cluster/test_policies.py",
        "tests/cluster/test_policies_of_jobs.py",
        "tests/cluster/test_stolen_account.py",
        "tests/cluster/test_backend.py",
        "tests/cluster/test_secrets.py",
        "tests/cluster/test_answering.py",
        "tests/cluster/test_services.py",
        "tests/cluster/test_events.py",
        "tests/cluster/test_attached.py",
        "tests/cluster/test_node_faults.py",
        "tests/cluster/test_killed.py",
        "tests/cluster/test_faulty.py",
        "tests/cluster/test_random_faults.py",
        "tests/cluster/test_faults.py",
    ),
    # A control plane with 500 nodes.
    "scale": ("tests/cluster/test_scale.py",),
    # Another control plane, with a node that runs containers.
    "node": (
        "tests/cluster/test_real_node.py",
        "tests/cluster/test_logs.py",
        "tests/cluster/test_answering_for_real.py",
        "tests/cluster/test_sessions_for_real.py",
        "tests/cluster/test_brought.py",
    ),
}


class Lanes(LoadScopeScheduling):
    """Each lane is one unit of work, begun before all other tests, which are spread one by one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((lane for lane, modules in LANES.items() if path in modules), nodeid)
