"""The commands of the laboratory."""

import typer


def join(app: typer.Typer) -> None:
    """Add the commands of the laboratory to those of the product."""
    from unseen_bench.cli import commands

    commands.join(app)


import unseen.cli  # noqa: E402  # which calls join: whichever of the two is imported first, both are whole
