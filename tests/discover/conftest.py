from __future__ import annotations

from dataclasses import replace

import pytest

from unseen import Session, demo
from unseen.demo import Pack
from unseen.discover import Grouping, group


@pytest.fixture(scope="session")
def pack() -> Pack:
    pack = demo.load()
    pack = pack.shuffled(0)[:600]
    return replace(pack, space=pack.space.with_negatives(500))


@pytest.fixture(scope="session")
def session(pack: Pack) -> Session:
    session = Session(pack.space)
    session.observe(pack.z[:500], pack.keys[:500])
    return session


@pytest.fixture(scope="session")
def grouping(session: Session) -> Grouping:
    return group(session)
