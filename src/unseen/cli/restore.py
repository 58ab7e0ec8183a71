"""unseen restore: put a backup of a service in place."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal


def restore(
    source: Annotated[Path, typer.Argument(help="A folder that `unseen backup` made.")],
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Put a backup where a service will find it: into a data folder that is new or empty.

    Example: `unseen restore /backups/unseen-monday --data /var/lib/unseen`, then `unseen serve --data /var/lib/unseen`
    """
    from unseen.serve import backup as copies

    count = copies.restore(source, data)
    if as_json:
        terminal.emit({"streams": count, "folder": str(data)})
    else:
        print(f"{count} streams restored to {data}")
