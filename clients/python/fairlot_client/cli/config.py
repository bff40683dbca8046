"""Stores the portals and tokens of a user, in a file that only the user may read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import click


@dataclass(frozen=True)
class Access:
    """A portal's URL, and a token for it."""

    url: str
    token: str


@dataclass
class Config:
    """The saved contexts. A context is a name for a portal and a token."""

    current: str = ""
    contexts: dict[str, Access] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Config:
        """Reads the file. A missing file is an empty configuration. Raises ClickException if it cannot be read."""
        path = config_path()
        try:
            data = json.loads(path.read_text())
            contexts = {name: Access(one["url"], one["token"]) for name, one in data["contexts"].items()}
            return cls(data["current"], contexts)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise click.ClickException(
                f"{path} cannot be read ({type(error).__name__}: {error}). Correct it, or delete it and run "
                "`fairlot login`."
            ) from None

    def save(self) -> None:
        """Replaces the file in one step. Only its owner may read it, from the first moment on."""
        path = config_path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        contexts = {name: {"url": one.url, "token": one.token} for name, one in self.contexts.items()}
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"current": self.current, "contexts": contexts}, file, indent=2)
            file.write("\n")
        new.replace(path)


def config_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "fairlot" / "config.json"


def access_of(context: str | None) -> Access:
    """Returns the portal and the token to use.

    The first of these that is set counts: the context `context`, the variables FAIRLOT_URL and FAIRLOT_TOKEN, the
    current context. FAIRLOT_TOKEN alone is used instead of the saved token of the current context. A token of the file
    is never sent to another URL. Raises ClickException if nothing is set.
    """
    url, token = os.environ.get("FAIRLOT_URL", ""), os.environ.get("FAIRLOT_TOKEN", "")
    if url and not context:
        if not token:
            raise click.ClickException("FAIRLOT_URL is set, but FAIRLOT_TOKEN is not. Set both, or neither.")
        return Access(normal_url(url), token)
    config = Config.load()
    name = context or config.current
    if name not in config.contexts:
        raise click.ClickException(_no_context(name, config))
    saved = config.contexts[name]
    return Access(saved.url, token) if token and not context else saved


def _no_context(name: str, config: Config) -> str:
    if not config.contexts:
        return "You are not logged in. Run `fairlot login URL`, or set FAIRLOT_URL and FAIRLOT_TOKEN."
    known = ", ".join(config.contexts)
    if not name:
        return f"No portal is chosen. Run `fairlot context use NAME`. Available: {known}."
    return f'There is no context "{name}". Available: {known}.'


def normal_url(url: str) -> str:
    """Returns the URL of a portal without a final slash, and with https:// if it has no scheme."""
    scheme, found, rest = url.strip().rpartition("://")
    rest = rest.rstrip("/")
    if not rest or (found and scheme not in {"http", "https"}):
        raise click.BadParameter(
            f'"{url}" is not the URL of a portal. Write it like https://fairlot.example.'
        )
    return f"{scheme or 'https'}://{rest}"
