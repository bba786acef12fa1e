"""Print the shell completion script of bash, zsh or fish"""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(vitconv completion bash)"            in ~/.bashrc
    zsh:  eval "$(vitconv completion zsh)"             in ~/.zshrc
    fish: vitconv completion fish | source             in ~/.config/fish/config.fish
    """  # noqa: D301
    from click.shell_completion import get_completion_class

    from vitconv.cli.main import COMPLETE, cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "vitconv", COMPLETE).source())
