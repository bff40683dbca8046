# One command each; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help up manage test test-fast soak lint format bench bench-web bench-cluster bench-accounting bench-eta bench-gpu test-gpu lock clean bootstrap client

python := .venv/bin/python
tests := tests
# Processes that run tests in parallel: two keep two cores busy while the others wait for whole portals and clusters.
# tests/conftest.py orders the tests.
processes := 4
spread := --dist loadgroup --no-loadscope-reorder
# Settings of Django for commands that connect to nothing.
unconnected := SECRET_KEY=only-for-the-linters-which-sign-and-connect-to-nothing \
	DATABASE_URL=postgresql://nobody@127.0.0.1:9/none REDIS_URL=redis://127.0.0.1:9/0

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: bootstrap ## start everything on this machine in the foreground; Ctrl-C stops it
	@exec $(python) -m embedded up

manage: bootstrap ## run a Django command, e.g. make manage ARGS="createsuperuser"
	@exec $(python) -m embedded run -- $(python) manage.py $(ARGS)

test: bootstrap ## run all tests that must pass
	@bin/chromium-present
	@$(python) -m tests.cluster.binaries
	@exec $(python) -m pytest -n $(processes) $(spread) --durations 15 $(tests)

test-fast: bootstrap ## run the tests without browser, cluster and slow ones
	@exec $(python) -m pytest -n 2 $(spread) -m "not browser and not slow and not cluster" $(tests)

soak: bootstrap ## test for hours: thousands of random economies, 500 nodes, a thousand runs of random faults
	@$(python) -m tests.cluster.binaries
	@PROMISES_ECONOMIES=$${ECONOMIES:-5000} $(python) -m pytest -q tests/fairshare/promises/test_promises.py
	@SCALE=$${SCALE:-1} $(python) -m pytest -s tests/cluster/test_scale.py
	@RUNS=$${RUNS:-1000} exec $(python) -m pytest -s tests/cluster/test_random_faults.py

lint: bootstrap ## check style, types, import contract, templates, words, migrations and Django settings
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	$(unconnected) .venv/bin/mypy
	.venv/bin/lint-imports
	bin/templates check
	bin/words
	$(unconnected) $(python) -W error -W 'ignore:Got an error checking:RuntimeWarning' manage.py makemigrations --check --dry-run
	$(unconnected) PUBLIC_URL=https://fairlot.example $(python) -W error manage.py check --deploy --fail-level WARNING

format: bootstrap ## format Python and templates
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	bin/templates format

bench: bootstrap ## measure timings, which are never part of a test
	@$(python) -m embedded run -- $(python) manage.py bench $(ARGS)
	@$(python) -m tests.bench_ratios
	@$(unconnected) $(python) -m tests.bench_logs
	@$(python) -m tests.fairshare.bench_decide
	@$(python) -m tests.fairshare.bench_growth
	@$(python) -m tests.fairshare.bench_trades
	@$(python) -m tests.fairshare.bench_lies
	@$(python) -m tests.fairshare.bench_market
	@$(python) -m tests.fairshare.bench_anomalies
	@$(python) -m tests.fairshare.bench_false_rate
	@$(python) -m tests.scheduling.bench_homes
	@$(python) -m tests.clients.bench_start
	@$(python) -m pytest -q -s -p no:xdist tests/portal/sweeps/bench_sweeps.py
	@$(python) -m tests.ground.bench_up

bench-web: bootstrap ## load a whole portal with 200 users, 500 streams and bulk submissions; ARGS="--help" lists options
	@exec $(python) -m tests.load.bench_web --submits 2000 $(ARGS)

bench-cluster: bootstrap ## repeat published benchmarks of 500 nodes on a real control plane; SCALE=0.1 is a tenth
	@$(python) -m tests.cluster.binaries
	@exec $(python) -m pytest -q -s tests/cluster/bench_cluster.py tests/cluster/bench_workloads.py

bench-accounting: bootstrap ## time reports on a year with a million jobs; ARGS="--jobs 100000" is a tenth, ARGS="--trace FILE" uses a published trace
	@$(python) -m embedded run -- $(python) manage.py bench_accounting $(ARGS)

bench-eta: bootstrap ## measure how often intervals of expected starts hold; DATA=FOLDER has published traces
	@exec $(python) -m tests.fairshare.bench_starts $(ARGS)

test-gpu: bootstrap ## test local jobs on the first NVIDIA GPU of this machine, which nothing else may use meanwhile
	@exec $(python) -m pytest tests/scheduling/backends/local/test_real_gpu.py

bench-gpu: bootstrap ## measure freezes and looks at GPUs on the first NVIDIA GPU of this machine
	@$(unconnected) $(python) -m tests.scheduling.bench_gpu

lock: bootstrap ## update uv.lock after a change of pyproject.toml
	.venv/bin/uv lock
	$(python) bin/pin-uv

client: bootstrap ## write the client's methods again after a change of the API
	@$(unconnected) $(python) manage.py export_openapi_schema --api portal.api.api.api | \
		$(python) clients/python/fairlot_generator.py

clean: ## delete everything that was built; keep var/, which contains data
	rm -rf .venv .environments staticfiles artifacts .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

bootstrap:
	@bin/bootstrap
