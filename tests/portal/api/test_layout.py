"""The API does not depend on pages: it calls the same actions as the pages, but never imports the views of pages."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import getsource, ismodule

from django.urls import URLPattern, URLResolver, get_resolver

import portal.api


def views(of: URLResolver) -> Iterator[object]:
    for one in of.url_patterns:
        if isinstance(one, URLPattern) and one.name != "api_not_found":
            yield one.callback
        elif isinstance(one, URLResolver) and one.namespace not in {"api-1", "api-compatible"}:
            yield from views(one)


def test_no_module_of_the_api_uses_a_page() -> None:
    pages = {id(view) for view in views(get_resolver())}
    assert len(pages) > 100
    used, modules = [], list(pkgutil.walk_packages(portal.api.__path__, "portal.api."))
    for module in (import_module(one.name) for one in modules if one.name != "portal.api.urls"):
        source = getsource(module) if not module.__file__.endswith("__init__.py") else ""
        used += [f"{module.__name__}: request.user" for _ in re.findall(r"request\.user =", source)]
        for name, value in vars(module).items():
            held = (
                {f"{name}.{key}": one for key, one in vars(value).items()}
                if ismodule(value)
                else {name: value}
            )
            used += [
                f"{module.__name__}: {path}"
                for path, one in held.items()
                if id(one) in pages and (path == name or path in source)
            ]
    assert used == []
