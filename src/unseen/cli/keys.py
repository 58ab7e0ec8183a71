"""Make, list and revoke API keys. Example: `unseen keys add --scope admin`"""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.errors import SettingError
from unseen.serve.http.auth import ApiKeys
from unseen.serve.http.log import AUDIT, append, line

keys = typer.Typer(help=__doc__, no_args_is_help=True)

Expires = Annotated[str, typer.Option(help="How long the key is good: 30m, 12h, 90d; for ever by default.")]


def _keys(data: Path) -> ApiKeys:
    return ApiKeys(data / "keys.json")


@keys.command("add")
def add_key(
    owner: Annotated[str, typer.Option(help="Whose streams the key sees; * is everyone's.")] = "*",
    scope: Annotated[str, typer.Option(help="read, observe or admin; each includes those before it.")] = "observe",
    expires: Expires = "",
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Make a key and print it: it is shown once and kept as a hash.

    Example: `unseen keys add --owner team-a --scope observe --expires 90d`
    """
    key = _keys(data).add(owner, scope, _ends(expires))
    _audit(data, "add", key.split("_")[1])
    if as_json:
        terminal.emit({"key": key, "owner": owner, "scope": scope})
    else:
        print(key)


@keys.command("list")
def list_keys(data: options.ServiceData = options.SERVICE_DATA, as_json: options.AsJson = False) -> None:
    """List keys by id; the keys themselves are not kept.

    Example: `unseen keys list`
    """
    found = _keys(data).all()
    if not found:
        terminal.err.print(f"no keys in {data}; make one: unseen keys add --scope admin --data {data}", markup=False)
    for key in found:
        if as_json:
            terminal.emit({"id": key.id, "owner": key.owner, "scope": key.scope, "expires": key.expires or None})
        else:
            ends = f"  until {datetime.fromtimestamp(key.expires, UTC):%Y-%m-%d %H:%M} UTC" if key.expires else ""
            print(f"{key.id}  {key.scope:<8} {key.owner}{ends}")


@keys.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(help="The id of the key: unseen_ID_...")],
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Refuse a key from now on, in a running service too.

    Example: `unseen keys revoke 1f0c9a2b`
    """
    _keys(data).revoke(key)
    _audit(data, "revoke", key)
    if as_json:
        terminal.emit({"revoked": key})


@keys.command("rotate")
def rotate_key(
    key: Annotated[str, typer.Argument(help="The id of the key: unseen_ID_...")],
    grace: Annotated[str, typer.Option(help="How long the old key stays good: 30m, 12h, 7d.")] = "24h",
    expires: Expires = "",
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Make a key with the owner and scope of another, which stays good for a while, and print it.

    Example: `unseen keys rotate 1f0c9a2b --grace 24h`
    """
    made = _keys(data).rotate(key, _seconds(grace), _ends(expires))
    _audit(data, "rotate", key)
    if as_json:
        terminal.emit({"key": made, "rotated": key})
    else:
        print(made)


def _seconds(text: str) -> float:
    """A duration such as 30m, 12h or 90d in seconds."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found:
        raise SettingError(f"expected a duration such as 30m, 12h or 90d, got {text!r}; write a number and a unit")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _ends(text: str) -> float:
    return time.time() + _seconds(text) if text else 0.0


def _audit(data: Path, action: str, key: str) -> None:
    """Note a change of keys where the service notes its own changes."""
    append(data / "logs" / AUDIT, [line(action=f"keys {action}", key=key)])
