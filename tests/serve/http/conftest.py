"""A service of its own for each file of tests, and a stream in it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.service import Remote, Server, create


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with what the file calls OPTIONS."""
    options = getattr(request.module, "OPTIONS", {})
    with Server(tmp_path_factory.mktemp("service"), **options) as running:
        yield running


@pytest.fixture
def remote(server: Server) -> Iterator[Remote]:
    """A stream that has observed nothing."""
    made = create(server.client)
    yield made
    made.delete()
