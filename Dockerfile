# One image for web, worker, beat and watch; docker-compose.yml says which runs what.
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/app/.venv
WORKDIR /app
COPY requirements-bootstrap.txt ./
RUN python -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --require-hashes -r requirements-bootstrap.txt
COPY pyproject.toml uv.lock ./
# Without the embedded servers: production brings its own.
RUN /opt/uv/bin/uv sync --no-cache --frozen --no-default-groups
COPY bin/browser-packages bin/
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends npm \
    && .venv/bin/python bin/browser-packages
# The environment of local jobs, which never get the portal's own.
COPY bin/job-environment bin/
RUN /opt/uv/bin/uv export --frozen --no-header --only-group examples --only-group notebooks \
        --output-file /tmp/job-requirements.txt \
    && python -m venv .environments/python \
    && /opt/uv/bin/uv pip install --no-cache --python .environments/python/bin/python --require-hashes \
        --requirements /tmp/job-requirements.txt \
    && bin/job-environment .environments/python
COPY manage.py ./
COPY fairshare fairshare
COPY accounting accounting
COPY scheduling scheduling
COPY portal portal
COPY templates templates
COPY docs docs
COPY static static
COPY examples examples
# The settings want these; nothing is connected to, and none of them stays in the image.
RUN SECRET_KEY=thrown-away-once-the-static-files-are-collected \
    DATABASE_URL=postgresql://nobody@127.0.0.1:9/none REDIS_URL=redis://127.0.0.1:9/0 \
    .venv/bin/python manage.py collectstatic --noinput

FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
# git fetches the code of jobs.
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /app --no-create-home --shell /usr/sbin/nologin fairlot \
    && install --directory --owner fairlot /var/lib/fairlot
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1
USER fairlot
EXPOSE 8000
CMD ["granian", "--interface", "asginl", "--host", "0.0.0.0", "--port", "8000", "--http", "1", "--http1-header-read-timeout", "15000", "--backlog", "2048", "--backpressure", "2048", "--workers", "2", "--workers-kill-timeout", "3", "portal.asgi:application"]
