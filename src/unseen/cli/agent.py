"""unseen mcp: detect, explain, group and promote as tools of an agent, by the Model Context Protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli import options, output
from unseen.errors import SettingError, UnseenError, import_extra

MOST = 200  # verdicts in one answer


def mcp(
    root: Annotated[Path, typer.Option(help="Folder that the agent may read, and keep states in.")],
    as_json: options.AsJson = False,
) -> None:
    """Serve detect, explain, group and promote to an agent, on stdin and stdout.

    Example: `claude mcp add unseen -- unseen mcp --root ~/photos`

    Every path is below --root, and what a link there leads to is not; `--json` prints the tools and ends. A new state
    has the encoder `offline`; one that `unseen detect` made keeps its own.
    """
    if not root.is_dir():
        raise SettingError(f"expected a folder for --root, got {root}; make it first")
    import asyncio

    server = tool_server(root.resolve())
    if as_json:
        for tool in asyncio.run(server.list_tools()):
            output.emit({"tool": tool.name, "description": tool.description})
    else:
        server.run("stdio")


def tool_server(root: Path) -> Any:
    """The server of the four tools; each is the command of that name, in a process of its own."""
    server = import_extra("mcp.server", "mcp").MCPServer("unseen")

    async def detect(
        photos: str, names: list[str], state: str = "state.safetensors", only_unknown: bool = False
    ) -> dict[str, Any]:
        """Which of some names each photo of a folder shows, or that it is unknown. Learns; no training, no labels.

        `photos` is a folder or a photo, `state` the file that keeps what is learned; names are needed once.
        """
        labels = [f"--label={name}" for name in names]
        rows = await call(root, "detect", *labels, _state(root, state), "--", photos_below(root, photos))
        found = [row for row in rows if row.get("verdict") == "unknown" or ("verdict" in row and not only_unknown)]
        others = [row for row in rows if "verdict" not in row]
        return {"verdicts": found[:MOST], "left_out": len(found[MOST:]), "others": others[-MOST:]}

    async def explain(photo: str, state: str = "state.safetensors") -> list[dict[str, Any]]:
        """Why a photo is known or unknown: nearest names, nearest negatives, similar earlier photos, margin."""
        return await call(root, "explain", _state(root, state), "--", photos_below(root, photo))

    async def group(state: str = "state.safetensors") -> list[dict[str, Any]]:
        """The unknown images of a state in numbered groups, each with suggestions of a name."""
        return await call(root, "group", _state(root, state))

    async def promote(group: int, name: str, state: str = "state.safetensors") -> list[dict[str, Any]]:
        """Make a group of unknown images a known name."""
        return await call(root, "edit", _state(root, state), "--", "promote", str(group), name)

    for work in (detect, explain, group, promote):
        server.add_tool(_in_words(work))
    return server


def _in_words(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A tool whose errors reach the agent in our words."""
    errors = import_extra("mcp.server.mcpserver.exceptions", "mcp")

    @wraps(work)
    async def tool(*given: Any, **named: Any) -> Any:
        try:
            return await work(*given, **named)
        except UnseenError as error:
            raise errors.ToolError(str(error)) from error

    return tool


async def call(root: Path, *words: str) -> list[dict[str, Any]]:
    """What a command prints as JSON, or its error."""
    import asyncio

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "unseen", words[0], "--json", *words[1:], cwd=root,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, errors = await process.communicate()
    if process.returncode not in (output.DONE, output.SKIPPED):
        raise SettingError(errors.decode().strip().splitlines()[-1])
    return [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]


def photos_below(root: Path, path: str) -> str:
    """A folder or a photo below another folder, by its path from there; refuse lists, which lead anywhere."""
    from unseen.images.decode import is_image_file

    found = below(root, path)
    if not (found.is_dir() or (found.is_file() and is_image_file(found))):
        raise SettingError(f"expected a folder or a photo, got {path}; lists, archives and videos are not read here")
    for one in found.rglob("*"):
        if one.is_symlink():
            below(root, str(one))
    return str(found.relative_to(root))


def below(root: Path, path: str) -> Path:
    """The path below a folder that a text means, wherever links lead; refuse any other."""
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise SettingError(f"expected a path below {root}, got {path}; the agent sees nothing else")
    return found


def _state(root: Path, state: str) -> str:
    return f"--state={below(root, state).relative_to(root)}"
