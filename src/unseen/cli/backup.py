"""unseen backup: a copy of everything a service keeps, while it runs."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal


def backup(
    target: Annotated[Path, typer.Argument(help="A folder to make.")],
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Copy the data folder of a service, running or not, to a new folder.

    Example: `unseen backup /backups/unseen-monday --data /var/lib/unseen`

    Every stream is copied as a kill at some moment would have left it, so nothing that was acknowledged before the
    backup began is missing.
    """
    from unseen.serve import backup as copies

    count = copies.backup(data, target)
    if as_json:
        terminal.emit({"streams": count, "folder": str(target)})
    else:
        print(f"{count} stream{'s' * (count != 1)} copied to {target}")
