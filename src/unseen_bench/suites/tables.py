"""The TOML tables themselves: those of the package, and your own."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from unseen.errors import DataError


def names() -> list[str]:
    """The suites that come with the package."""
    return sorted(
        file.name.removesuffix(".toml") for file in files(__package__).iterdir() if file.name.endswith(".toml")
    )


def read(name: str) -> dict[str, Any]:
    """The table of a suite; one that `extends` another holds only the differences."""
    table = _parse(name)
    if "extends" not in table:
        return table
    base = read(table.pop("extends"))
    added: dict[str, Any] = {key: {**base[key], **table[key]} for key in ("labels", "unknown") if key in table}
    without = {key: value for key, value in base.items() if key not in ("paper", "published")}  # of one table
    return {**without, **table, **added}


def needs_images(name: str) -> bool:
    """Whether a suite reads images (--data) rather than feature files (--features)."""
    known = read(name)["known"]
    return "lists" in known or "folders" in known


def learned_file(name: str) -> str | None:
    """The file in the data root that holds the label space of a suite with learned prompts."""
    found: str | None = read(name).get("labels", {}).get("learned")
    return found


def _parse(name: str) -> dict[str, Any]:
    if name in names():
        return tomllib.loads((files(__package__) / f"{name}.toml").read_text())
    if not Path(name).is_file():
        raise DataError(
            f"expected a suite out of {', '.join(names())} or a TOML file, got {name!r}; check the spelling"
        )
    return tomllib.loads(Path(name).read_text())
