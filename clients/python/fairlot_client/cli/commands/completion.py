"""The command that prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and job ids in a shell.

    \b
    bash  eval "$(fairlot completion bash)"     in ~/.bashrc
    zsh   eval "$(fairlot completion zsh)"      in ~/.zshrc
    fish  fairlot completion fish | source      in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}.")
    click.echo(kind(context.find_root().command, {}, "fairlot", "_FAIRLOT_COMPLETE").source())
