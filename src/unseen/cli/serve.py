"""unseen serve: the page and the API."""

import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.errors import MissingExtra


def serve(
    host: Annotated[str, typer.Option(help="Address to bind; any but loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.", min=0, max=65535)] = 8000,
    data: options.ServiceData = options.SERVICE_DATA,
    demo: Annotated[bool, typer.Option("--demo", help="Start with the images inside the package.")] = False,
    encoder: Annotated[str, typer.Option(help="Encoder for images and names, or none.")] = "offline",
    every: Annotated[int, typer.Option(help="Samples between two snapshots.", min=1)] = 20_000,
    retain: Annotated[int, typer.Option(help="Samples kept in the journal beyond need.", min=0)] = 0,
    rate: Annotated[float, typer.Option(help="Samples a second of one owner; 0 is no limit.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Samples in one request.", min=1)] = 2048,
    body: Annotated[int, typer.Option(help="Bytes in one request.", min=1024)] = 64 << 20,
    threads: Annotated[int, typer.Option(help="Cores for one block; streams run side by side.", min=1)] = 1,
    group_minutes: Annotated[
        float, typer.Option(help="Minutes between two looks for fast growing groups of a stream; 0: never.", min=0)
    ] = 10,
    volatile: Annotated[bool, typer.Option("--volatile", help="Keep no journal: a restart forgets.")] = False,
    logs: Annotated[
        str, typer.Option(help="Folder of access.jsonl and audit.jsonl, or none; by default in the data folder.")
    ] = "",
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Need a key on loopback too: behind a proxy.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Serve streams over HTTP, with a page; streams learn from requests and survive a crash.

    Example: `unseen serve --demo`, then open http://127.0.0.1:8000

    Everything acknowledged is on disk. To bind another address, first make a key: `unseen keys add --scope admin`.
    """
    try:
        from unseen.serve.run import run
        from unseen.serve.settings import Durability, Limits, Settings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unseen"):
            raise
        raise MissingExtra(error.name or "fastapi", "serve") from error
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    settings = Settings(
        data,
        host,
        None if encoder == "none" else encoder,
        Limits(batch=batch, body=body, rate=rate),
        Durability(every=every, retain=retain, volatile=volatile),
        logs=None if logs == "none" else Path(logs or data / "logs"),
        require_key=require_key,
        group_minutes=group_minutes,
        compute=threads,
    )
    run(settings, port=port, demo=demo, announce=partial(_announce, data=data, as_json=as_json))


def _announce(sentence: str, *, data: Path, as_json: bool) -> None:
    """Print where the service listens."""
    if as_json:
        url = next(word for word in sentence.split() if "://" in word)
        terminal.emit({"url": url, "data": str(data)})
    else:
        terminal.err.print(sentence)
