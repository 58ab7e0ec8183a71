from __future__ import annotations

from dataclasses import replace

import pytest
import torch

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
    """A session that knows a few photos of each name: what is tested here is not where a threshold starts."""
    session, others = Session(pack.space), demo.load().shuffled(0)[600:]
    is_known = torch.tensor([key.rsplit("/", 1)[0] in pack.space.names for key in others.keys])
    session.calibrate(others.z[is_known][:40])
    session.observe(pack.z[:500], pack.keys[:500])
    return session


@pytest.fixture(scope="session")
def grouping(session: Session) -> Grouping:
    return group(session)
