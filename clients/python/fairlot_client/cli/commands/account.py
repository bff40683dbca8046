"""Commands for logging in, and for several portals."""

from __future__ import annotations

import os
import platform
import sys
from urllib.parse import urlsplit

import click

from fairlot_client.cli.app import App, connect, talk, with_app
from fairlot_client.cli.config import Access, Config, config_path, normal_url
from fairlot_client.cli.output import Column, output_option, role_in_words, show_one, show_rows

LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@click.command()
@click.argument("url")
@click.option("--name", help="Name of the context; by default the portal's host name.")
@click.option("--with-token", is_flag=True, help="Read the token from stdin.")
@with_app
def login(app: App, url: str, name: str | None, with_token: bool) -> None:
    """Save a token for the portal at URL, and use this portal from now on.

    You allow it in the browser, on this machine or on another. In scripts, the token is read from stdin (--with-token)
    or from FAIRLOT_TOKEN.
    """
    url = normal_url(url)
    parts = urlsplit(url)
    token = _token(app, url, with_token=with_token)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        talk(
            f"Warning: {url} has no TLS, so others on the network can read the token. Use https:// if you can."
        )
    me = connect(url, token).me()
    config = Config.load()
    context = name or parts.netloc
    config.contexts[context] = Access(url, token)
    config.current = context
    config.save()
    talk(f"Logged in to {url} as {me['username']}. The token is in {config_path()}.")


def _token(app: App, url: str, *, with_token: bool) -> str:
    if with_token:
        token = sys.stdin.readline()
    elif not (token := os.environ.get("FAIRLOT_TOKEN", "")):
        if not app.is_interactive():
            raise click.UsageError(
                "There is no terminal to log in at. Use --with-token and send the token to stdin, or set "
                "FAIRLOT_TOKEN."
            )
        token = _allowed_in_the_browser(app, url)
    token = token.strip()
    if not token.isascii() or not token or any(one.isspace() for one in token):
        raise click.UsageError("This is not a token. A token is one word, which begins with fairlot_.")
    return token


def _allowed_in_the_browser(app: App, url: str) -> str:
    """Returns the token that the person allows in the browser. It waits there until the codes end."""
    client = connect(url, "")
    begun = client.begin_login(name=platform.node()[:60])
    talk(f"Open {begun['url']} and allow this program to have a token. Its code is {begun['user_code']}.")
    click.launch(begun["url"])
    for _ in range(begun["expires_in"] // begun["interval"] + 1):
        answer = client.login_token(device_code=begun["device_code"])
        if answer["state"] == "allowed":
            return answer["token"]
        if answer["state"] != "waiting":
            break
        app.pause(begun["interval"])
    reason = "You denied it" if answer["state"] == "denied" else "Nobody allowed it in time"
    raise click.ClickException(f"{reason}. Run `fairlot login {url}` again, or use --with-token.")


@click.command()
@click.argument("name", required=False)
@with_app
def logout(app: App, name: str | None) -> None:
    """Delete the saved token of the current context, or of the context NAME."""
    config = Config.load()
    name = name or app.context or config.current
    if name not in config.contexts:
        raise click.UsageError(f'There is no context "{name}". `fairlot context list` lists them.')
    url = config.contexts.pop(name).url
    if config.current == name:
        config.current = next(iter(config.contexts), "")
    config.save()
    talk(f"Deleted the token for {url} here. It stays valid until you revoke it at {url}/account/tokens/.")


@click.command()
@output_option
@with_app
def whoami(app: App) -> None:
    """Show who you are on this portal, and your teams."""
    me = app.client.me()
    fields: list[Column] = [
        ("user", "username"),
        ("name", "name"),
        ("role", "role"),
        (
            "teams",
            lambda it: [f"{one['team']} ({role_in_words(one)})" for one in it["teams"]],
        ),
        ("portal", lambda _: app.client.url),
    ]
    show_one(app, me, fields, name="username")


@click.group()
def context() -> None:
    """Choose between several portals."""


@context.command("list")
@output_option
@with_app
def list_contexts(app: App) -> None:
    """List the portals that you are logged in to."""
    config = Config.load()
    rows = [
        {"name": name, "url": one.url, "current": name == config.current}
        for name, one in config.contexts.items()
    ]
    columns: list[Column] = [
        ("", lambda row: "*" if row["current"] else ""),
        ("NAME", "name"),
        ("URL", "url"),
    ]
    show_rows(app, rows, columns, name="name")


@context.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Use the portal of the context NAME from now on."""
    config = Config.load()
    if name not in config.contexts:
        known = ", ".join(config.contexts) or "none yet"
        raise click.UsageError(f'There is no context "{name}". Available: {known}.')
    config.current = name
    config.save()
    talk(f"Using {config.contexts[name].url}.")
