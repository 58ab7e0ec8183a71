"""Make, list and revoke API keys. Example: `unseen keys add --scope admin`"""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.serve.http.auth import ApiKeys

keys = typer.Typer(help=__doc__, no_args_is_help=True)


def _keys(data: Path) -> ApiKeys:
    return ApiKeys(data / "keys.json")


@keys.command("add")
def add_key(
    owner: Annotated[str, typer.Option(help="Whose streams the key sees; * is everyone's.")] = "*",
    scope: Annotated[str, typer.Option(help="read, observe or admin; each includes those before it.")] = "observe",
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Make a key and print it: it is shown once and kept as a hash.

    Example: `unseen keys add --owner team-a --scope observe`
    """
    key = _keys(data).add(owner, scope)
    if as_json:
        terminal.emit({"key": key, "owner": owner, "scope": scope})
    else:
        print(key)


@keys.command("list")
def list_keys(data: options.ServiceData = options.SERVICE_DATA, as_json: options.AsJson = False) -> None:
    """List keys by id; the keys themselves are not kept.

    Example: `unseen keys list`
    """
    for key in _keys(data).all():
        if as_json:
            terminal.emit({"id": key.id, "owner": key.owner, "scope": key.scope})
        else:
            print(f"{key.id}  {key.scope:<8} {key.owner}")


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
    if as_json:
        terminal.emit({"revoked": key})
