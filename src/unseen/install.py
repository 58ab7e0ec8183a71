"""Where this package was installed from, and the command that adds one of its extras from there."""

import json
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlparse

PACKAGE = "unseen"


def extra_command(extra: str) -> str:
    """The command that installs an extra from where this package came: checkout, git, wheel or index."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return checkout_command(Path(__file__).parents[2], extra, editable=True)
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return origin_command(origin, extra, found.requires or ())


def origin_command(origin: dict[str, Any], extra: str, requires: Any = ()) -> str:
    """The command for what `direct_url.json` of an installation says; {} is an installation from an index.

    >>> origin_command({}, "video")
    "pip install 'unseen[video]'"
    >>> origin_command({"url": "https://example.org/u.git", "vcs_info": {"vcs": "git", "commit_id": "3f9a"}}, "video")
    "pip install 'unseen[video] @ git+https://example.org/u.git@3f9a'"
    """
    url, where = origin.get("url", ""), _local(origin.get("url", ""))
    source = origin.get("vcs_info")
    # a wheel that was deleted since; a repository on this machine, whose address older pips refuse beside an extra
    if where and (source or not where.exists()):
        return f"pip install {' '.join(map(quote, extra_requirements(requires, extra)))}"
    if where and where.is_dir():
        return checkout_command(where, extra, editable=origin.get("dir_info", {}).get("editable", False))
    if source:
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    return f"pip install '{PACKAGE}[{extra}]{f' @ {url}' if url else ''}'"


def checkout_command(folder: Path, extra: str, *, editable: bool) -> str:
    """The command that installs an extra from a checkout.

    >>> checkout_command(Path("/home/me/unseen"), "video", editable=True)
    "pip install -e '/home/me/unseen[video]'"
    """
    return f"pip install {'-e ' if editable else ''}'{folder}[{extra}]'"


def extra_requirements(requires: Any, extra: str) -> list[str]:
    """What an extra brings, out of the requirements of a distribution.

    >>> extra_requirements(["torch>=2.4", "av>=12; extra == 'video'"], "video")
    ['av>=12']
    """
    split = (one.partition(";") for one in requires)
    return [name.strip() for name, _, marker in split if f"extra == '{extra}'" in marker.replace('"', "'")]


def _local(url: str) -> Path | None:
    parts = urlparse(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
