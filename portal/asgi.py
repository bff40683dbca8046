"""The ASGI entry point, for granian or any other ASGI server."""

import os
from typing import cast

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup(set_prefix=False)

from accounting.core.statements import plan_once  # noqa: E402 - needs the settings
from portal.addresses import with_client_address  # noqa: E402 - as above
from portal.edge.app import App, with_edge  # noqa: E402 - as above
from portal.edge.handler import Handler  # noqa: E402 - as above
from portal.edge.places import limit_connections  # noqa: E402 - as above
from portal.response_headers import with_security_headers  # noqa: E402 - as above
from portal.sessions.proxy import with_sessions  # noqa: E402 - its models need the applications
from portal.terminals.sockets import with_terminals  # noqa: E402 - as above
from portal.warm_up import load_pages, start_local_cluster_check  # noqa: E402 - as above
from scheduling.core.safe_streams import outlive_full_disks  # noqa: E402 - as above

_pages = with_security_headers(with_edge(cast(App, Handler())))
application = with_client_address(with_sessions(with_terminals(_pages)))
outlive_full_disks()
limit_connections()
plan_once()
start_local_cluster_check()
load_pages()
