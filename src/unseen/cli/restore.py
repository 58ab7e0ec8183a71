"""unseen restore: put a backup of a service in place."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.errors import SettingError


def restore(
    source: Annotated[Path, typer.Argument(help="A folder that `unseen backup` made.")],
    until: Annotated[str, typer.Option(help="Go back to this moment: 2026-11-16T14:05:00, local time or with Z.")] = "",
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Copy a backup into a data folder that is new or empty.

    Example: `unseen restore /backups/unseen-monday --data /var/lib/unseen`, then `unseen serve --data /var/lib/unseen`

    With --until, what came after a moment is left out, to the second: back up what there is, then restore that.
    """
    from unseen.serve import backup as copies

    count = copies.restore(source, data, _moment(until) if until else None)
    if as_json:
        terminal.emit({"streams": count, "folder": str(data)})
    else:
        print(f"{count} stream{'s' * (count != 1)} restored to {data}")


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise SettingError(f"expected a moment such as 2026-11-16T14:05:00Z, got {text!r}; write it so") from error
