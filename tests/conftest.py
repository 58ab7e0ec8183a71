"""Fixtures every test may use: a small label space, a local Ray, the shared real features."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.streams import space
from unseen import LabelSpace
from unseen.scale import cluster

try:
    import hypothesis
except ImportError:  # the GPU's tests do without it: a machine with a GPU may have pytest and no more
    pass
else:
    hypothesis.settings.register_profile("unseen", deadline=None, derandomize=True)  # CI stalls; seeds must not
    hypothesis.settings.load_profile("unseen")
torch.set_num_threads(1)  # the tensors here are too small to share

REPO = Path(__file__).parents[1]
collect_ignore = ["fiftyone_package.py"]  # needs a package that pins others: `make fiftyone`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try again what waits for a deadline, and nothing else: another test that fails once is broken."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("timing"):
                item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture
def labels() -> LabelSpace:
    return space()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A local Ray of two workers, one for all tests that are marked `ray`: starting it takes seconds."""
    with cluster.connect("local", workers=2, memory=128 << 20) as joined:
        yield joined


@pytest.fixture(scope="session")
def features() -> Path:
    """The folder of shared CLIP features, or skip."""
    folder = Path(os.environ.get("UNSEEN_FEATURES", REPO.parent / "shared" / "clip-b16"))
    if not folder.is_dir():
        pytest.skip("the shared CLIP features are not here; set UNSEEN_FEATURES to their folder")
    return folder


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of an empty bucket in memory."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    name = request.node.name
    yield f"memory://bucket/{name}"
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)
