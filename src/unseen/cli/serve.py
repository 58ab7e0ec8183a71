"""The service from outside: run it, its keys, its backups."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli import options, output
from unseen.errors import MissingExtra, SettingError, check_choice

ACTIONS = ("list", "add", "revoke", "rotate")
GRACE = 86_400  # seconds that a rotated key stays good
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def serve(
    host: Annotated[str, typer.Option(help="Address to bind; any but loopback needs --behind-proxy.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.", min=0, max=65535)] = 8000,
    data: options.ServiceData = options.SERVICE_DATA,
    demo: Annotated[bool, typer.Option("--demo", help="Start with the images inside the package.")] = False,
    encoder: Annotated[str, typer.Option(help="Encoder for images and names, or none.")] = "offline",
    as_json: options.AsJson = False,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="nginx is in front: a key is always needed.", **options.MORE)
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of docs/how-to/production.md, such as rate=100 or batch=4096; may be given again.",
            **options.MORE,
        ),
    ] = None,
) -> None:
    """Serve streams over HTTP, with a page; streams learn from requests and survive a crash.

    Example: `unseen serve --demo`, then open http://127.0.0.1:8000

    Everything acknowledged is on disk. For others than this machine put nginx in front: docs/how-to/production.md.
    """
    try:
        from unseen.serve.run import run
        from unseen.serve.settings import Durability, Limits, Settings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unseen"):
            raise
        raise MissingExtra(error.name or "fastapi", "serve") from error
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    tables = asdict(Limits()), asdict(Durability()), {"threads": 1, "logs": str(data / "logs")}
    limits, durability, others = read_settings(settings or (), *tables)
    chosen = Settings(
        data,
        host,
        None if encoder == "none" else encoder,
        Limits(**limits),
        Durability(**durability),
        logs=None if others["logs"] == "none" else Path(others["logs"]),
        behind_proxy=behind_proxy,
        compute=others["threads"],
    )

    def announce(sentence: str) -> None:
        """Print where the service listens."""
        if as_json:
            output.emit({"url": next(word for word in sentence.split() if "://" in word), "data": str(data)})
        else:
            output.say(sentence)

    run(chosen, port=port, demo=demo, announce=announce)


def read_settings(given: Sequence[str], *defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each table of settings with what `--set NAME=VALUE` says in place of its defaults.

    >>> read_settings(["rate=100", "batch=64"], {"rate": 0.0, "batch": 2048}, {"every": 20})
    [{'rate': 100.0, 'batch': 64}, {'every': 20}]
    """
    found = [dict(table) for table in defaults]
    for one in given:
        name, _, value = one.partition("=")
        check_choice("a setting", name, [known for table in defaults for known in table])
        table = next(table for table in found if name in table)
        kind = type(table[name])
        try:
            table[name] = value.lower() in ("1", "true", "yes") if kind is bool else kind(value)
        except ValueError as error:
            raise SettingError(f"expected {name} as {kind.__name__}, got {value!r}; see the docs") from error
        if kind in (int, float) and table[name] < 0:
            raise SettingError(f"expected {name} of at least 0, got {value}; see the docs")
    return found


def keys(
    action: Annotated[str, typer.Argument(help=f"One of: {', '.join(ACTIONS)}.")] = "list",
    key: Annotated[str, typer.Argument(help="The id of the key to revoke or rotate: unseen_ID_...")] = "",
    owner: Annotated[str, typer.Option(help="Of add: whose streams the key sees; * is everyone's.")] = "*",
    scope: Annotated[
        str, typer.Option(help="Of add: read, observe or admin; each includes those before it.")
    ] = "observe",
    expires: Annotated[str, typer.Option(help="How long the key is good: 30m, 12h, 90d; for ever by default.")] = "",
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Make, list, revoke and rotate API keys: a key is shown once and kept as a hash.

    Example: `unseen keys add --owner team-a --scope observe --expires 90d`, later `unseen keys revoke 1f0c9a2b`

    `unseen keys rotate ID` makes a key with the owner and scope of another, which stays good for a day. A running
    service notices at once.
    """
    from unseen.serve.http.auth import ApiKeys
    from unseen.serve.http.log import AUDIT, append, line

    check_choice("an action", action, ACTIONS)
    kept = ApiKeys(data)
    if action in ("revoke", "rotate") and not key:
        raise SettingError(f"expected the id of a key to {action}, got none; see: unseen keys list")
    if action == "list":
        _print_keys(kept, data, as_json=as_json)
    elif action == "add":
        made = kept.add(owner, scope, _ends(expires))
        _print_key(made, {"owner": owner, "scope": scope}, as_json=as_json)
        key = made.split("_")[1]
    elif action == "rotate":
        _print_key(kept.rotate(key, GRACE, _ends(expires)), {"rotated": key}, as_json=as_json)
    else:
        kept.revoke(key)
        if as_json:
            output.emit({"revoked": key})
    if action != "list":
        append(data / "logs" / AUDIT, line(action=f"keys {action}", key=key))  # where the service notes its own


def _print_key(key: str, about: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        output.emit({"key": key, **about})
    else:
        print(key)


def _print_keys(kept: Any, data: Path, *, as_json: bool) -> None:
    found = kept.all()
    if not found:
        output.say(f"no keys in {data}; make one: unseen keys add --scope admin --data {data}")
    for key in found:
        if as_json:
            output.emit({"id": key.id, "owner": key.owner, "scope": key.scope, "expires": key.expires or None})
        else:
            ends = f"  until {datetime.fromtimestamp(key.expires, UTC):%Y-%m-%d %H:%M} UTC" if key.expires else ""
            print(f"{key.id}  {key.scope:<8} {key.owner}{ends}")


def _ends(text: str) -> float:
    """When a duration such as 30m, 12h or 90d is over; 0 for never."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found:
        raise SettingError(f"expected a duration such as 30m, 12h or 90d, got {text!r}; write a number and a unit")
    return time.time() + int(found[1]) * UNITS[found[2]]


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

    _print_streams(copies.backup(data, target), "copied", target, as_json=as_json)


def restore(
    source: Annotated[Path, typer.Argument(help="A folder that `unseen backup` made.")],
    data: options.ServiceData = options.SERVICE_DATA,
    as_json: options.AsJson = False,
) -> None:
    """Copy a backup into a data folder that is new or empty.

    Example: `unseen restore /backups/unseen-monday --data /var/lib/unseen`, then `unseen serve --data /var/lib/unseen`
    """
    from unseen.serve import backup as copies

    _print_streams(copies.restore(source, data), "restored", data, as_json=as_json)


def _print_streams(count: int, done: str, folder: Path, *, as_json: bool) -> None:
    if as_json:
        output.emit({"streams": count, "folder": str(folder)})
    else:
        print(f"{count} stream{'s' * (count != 1)} {done} to {folder}")
