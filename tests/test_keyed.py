"""Streams by key: each as if it were the only one, verdicts in the order of the input."""

from __future__ import annotations

import pickle

import pytest
import torch

from helpers.streams import stream
from unseen import Session, SessionSpec, detectors, keyed
from unseen.errors import DataError, MissingExtra
from unseen.keyed import one_thread
from unseen.threshold import Fixed

KEYS = ["b", "a", "b", "c/d", "a", "b"] * 20


@pytest.mark.parametrize("live", [False, True])
def test_the_verdicts_on_a_stream_do_not_depend_on_other_streams(labels, live):
    z = stream(labels, len(KEYS))
    job = keyed.StreamJob(SessionSpec(labels, "online", threshold="fixed"), live=live)
    parts = keyed.split(KEYS)
    assert [part.key for part in parts] == ["b", "a", "c/d"]
    verdicts = keyed.joined(parts, reversed(list(keyed.run_serially(job, parts, z, {}))))
    for key in "b", "a", "c/d":
        rows = torch.tensor([row for row, other in enumerate(KEYS) if other == key])
        with one_thread():
            session = Session(detectors.make("online", labels), Fixed(0.0))
            expected = session.observe(z[rows])
            expected = expected if live else session.rejudge(z[rows])  # a stream that ends is judged at its end
        assert torch.equal(verdicts.output.score[rows], expected.output.score)
        assert [verdicts[int(row)] for row in rows] == list(expected)


def test_a_stream_that_is_missing_is_an_error(labels):
    job, parts = keyed.StreamJob(SessionSpec(labels, "mcm")), keyed.split(KEYS)
    results = list(keyed.run_serially(job, parts, stream(labels, len(KEYS)), {}))
    with pytest.raises(DataError, match=r"got none for \['c/d'\]"):
        keyed.joined(parts, results[:2])


def test_the_number_of_torch_threads_does_not_change_scores(labels):
    z, job, parts = stream(labels, 600), keyed.StreamJob(SessionSpec(labels, "default")), keyed.split(["x"] * 600)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            (result,) = keyed.run_serially(job, parts, z, {})
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        found.append(result.verdicts.output)
    assert all(map(torch.equal, *found))


def test_an_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(MissingExtra("ray", "ray")))
    assert str(error) == str(MissingExtra("ray", "ray"))
