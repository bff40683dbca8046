"""The Celery queues. Each queue has one purpose, so that its waiting tasks do not delay the tasks of other queues."""

ROUNDS, OPERATIONS, BOOKS, MAIL, ANALYSIS = QUEUES = ("rounds", "operations", "books", "mail", "analysis")

# Tasks by name, because web servers send messages without importing the tasks' modules.
TASKS: dict[str, tuple[str, ...]] = {
    ROUNDS: (
        "scheduling.tasks.run_due_rounds",
        "scheduling.tasks.run_round",
    ),
    # Steps of running jobs, sessions and services. Some tasks wait for the answer of an attached cluster.
    OPERATIONS: (
        "scheduling.tasks.announce_services",
        "scheduling.tasks.check_clusters",
        "scheduling.tasks.end_drains",
        "scheduling.tasks.end_grants",
        "scheduling.tasks.end_overlong_jobs",
        "scheduling.tasks.announce_waits",
        "scheduling.tasks.measure_use",
        "scheduling.tasks.read_last_output",
        "scheduling.tasks.read_output",
        "scheduling.tasks.reconcile_all",
        "scheduling.tasks.run_due_operations",
        "scheduling.tasks.run_due_schedules",
        "scheduling.tasks.run_operations",
        "scheduling.tasks.step_idle_jobs",
        "scheduling.tasks.step_pipeline",
        "scheduling.tasks.step_pipelines",
        "scheduling.tasks.step_service",
        "scheduling.tasks.step_services",
        "scheduling.tasks.step_sessions",
        "scheduling.tasks.step_sweep",
        "scheduling.tasks.step_sweeps",
    ),
    BOOKS: (
        "accounting.tasks.prepare_months",
        "portal.tasks.forget_password_tries",
        "scheduling.tasks.bill_running_leases",
        "scheduling.tasks.close_books",
        "scheduling.tasks.close_terminals",
        "scheduling.tasks.delete_unwanted_files",
        "scheduling.tasks.price_classes",
        "scheduling.tasks.prune",
        "scheduling.tasks.remove_code",
        "scheduling.tasks.remove_files",
        "scheduling.tasks.remove_metrics",
        "scheduling.tasks.roll_up_metrics",
        "scheduling.tasks.seal_books",
        "scheduling.tasks.stop_readers",
        "scheduling.tasks.sum_shares",
        "scheduling.tasks.watch_budgets",
    ),
    MAIL: (
        "accounting.tasks.call_webhooks",
        "accounting.tasks.empty_outboxes",
        "accounting.tasks.notify",
        "accounting.tasks.send_mails",
        "accounting.tasks.tell_of_ends",
    ),
    # These tasks read much data and may take a minute.
    ANALYSIS: (
        "portal.tasks.send_reports",
        "scheduling.tasks.analyse_nightly",
        "scheduling.tasks.analyse_sharing",
        "scheduling.tasks.ask_shadow",
        "scheduling.tasks.forecast_starts",
        "scheduling.tasks.measure_files",
    ),
}
ROUTES = {task: {"queue": queue} for queue, tasks in TASKS.items() for task in tasks}
