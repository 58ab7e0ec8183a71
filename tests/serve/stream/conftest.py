"""One stream on disk, without a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.service import CONFIG, LABELS, Durability, Stream, read_config, write_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a stream that has observed nothing, in a data folder."""
    path = tmp_path / "data" / "streams" / ("0" * 16)
    path.mkdir(parents=True)
    LABELS.save(path / "space.safetensors")
    write_config(path, replace(CONFIG, id=path.name))
    return path


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., Stream]]:
    """A function that opens the stream of the folder; what it has opened is let go at the end, as a kill does."""
    found: list[Stream] = []

    def open_stream(**durability: int) -> Stream:
        found.append(Stream(folder, read_config(folder), Durability(**durability)))
        return found[-1]

    yield open_stream
    for stream in found:
        stream.abandon()
