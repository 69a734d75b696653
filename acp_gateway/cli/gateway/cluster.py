"""The command `token cluster`, which makes the token that all nodes of a cluster have."""

import os
from pathlib import Path

import click

from acp_gateway.cli.common import examples
from acp_gateway.errors import UsageError


@click.command(
    "cluster",
    epilog=examples(
        "acp-gateway token cluster --output cluster.token",
        "acp-gateway token cluster | ssh gpu2 '(umask 077; cat > cluster.token)'",
    ),
    short_help="Make the token of a cluster.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to this new file, in mode 0600, instead of printing it.",
)
def cluster_token(output: Path | None) -> None:
    """Make the token of a cluster: copy it to each node, into the token_file of [cluster].

    It is stored nowhere else, and no list shows it. Every node that has it trusts the others with everything.
    """
    from acp_gateway.security.token_format import mint

    secret = mint()
    if output is None:
        click.echo(secret)
        return
    try:
        with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secret + "\n")
    except FileExistsError:
        raise UsageError(f"{output} is there already: another token would exclude the nodes that have it") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
