"""One sample by itself has the readings of a block: the formulas in NumPy are those in torch."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.streams import cone, two_clouds, unit
from unseen import Session, checkpoint
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled.names import NameLogits
from unseen.detectors.pooled.state import BASELINE_SAMPLES, LATEST
from unseen.detectors.state import flatten
from unseen.labels import Examples
from unseen_bench.run.synthetic import label_space, stream


@pytest.mark.parametrize(("known", "negatives", "examples"), [(1, 5, 0), (3, 40, 0), (30, 200, 0), (3, 40, 12)])
def test_singles_after_the_baseline_are_read_as_in_a_block(known, negatives, examples):
    labels = label_space(known, negatives, 24).to(dtype=torch.float64)
    if examples:
        labels = replace(labels, examples=Examples(unit(examples, 24, seed=3), torch.arange(examples) % known))
    detector, z = PooledEvidence(labels), stream(labels, 800).double()
    expected, after = detector.observe(detector.start(), z)
    _, state = detector.observe(detector.start(), z[:BASELINE_SAMPLES])
    outputs = []
    for row in z[BASELINE_SAMPLES:].split(1):
        output, state = detector.observe(state, row)
        outputs.append(output)
    for column, wanted in zip(DetectorOutput.joined(outputs), expected, strict=True):
        assert_close(column, wanted[BASELINE_SAMPLES:])
    for name, part in flatten(after.sums).items():
        assert_close(flatten(state.sums)[name], part, msg=name)


def test_a_subclass_with_formulas_of_its_own_reads_few_samples_by_them():
    class Silent(PooledEvidence):
        def _name_logits(self, state, z, nearest):
            return tuple(NameLogits(*map(torch.zeros_like, side)) for side in super()._name_logits(state, z, nearest))

    labels = cone()
    detector, (z, _) = Silent(labels), two_clouds(labels, 300)
    expected, _ = detector.observe(detector.start(), z)
    _, state = detector.observe(detector.start(), z[:290])
    few, _ = detector.observe(state, z[290:])
    assert_close(few.score, expected.score[290:])
    plain, _ = PooledEvidence(labels).observe(state, z[290:])
    assert (plain.score - few.score).abs().max() > 0.1


@pytest.mark.parametrize("sizes", [[1] * (LATEST + 3), [1] * LATEST + [2, 1], [5, 1, 1, 3, 1], [1, 7, 1]])
def test_pending_samples_are_kept_in_order_however_they_come(sizes):
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 600)
    state = detector.observe(detector.start(), z[:512])[1]
    for part in z[512 : 512 + sum(sizes)].split(sizes):
        state = detector.observe(state, part)[1]
    pending, count = state.pending, sum(sizes)
    assert int(pending.size) == count
    assert_close(pending.all(count, int(pending.latest_size)).z, z[512 : 512 + count])
    assert float(state.updated(labels).sums.sides.weight.sum()) == pytest.approx(512 + count)


def test_a_state_of_before_single_samples_had_a_place_goes_on(tmp_path):
    labels = cone()
    session, (z, _) = Session(labels), two_clouds(labels, 600)
    session.observe(z[:570])
    session.save(path := tmp_path / "state.safetensors")
    found = checkpoint.load(path)
    for name in [name for name in found.states["detector"] if "latest" in name]:
        del found.states["detector"][name]
    del found.states["threshold"]["waiting"], found.states["threshold"]["pending"]
    assert_close(Session(labels).resumed(found).observe(z[570:]).score, session.observe(z[570:]).score)


def test_streams_that_take_turns_are_judged_by_their_own_states():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 700)
    streams = z[:340], z[340:680].flip(0)
    alone = [detector.observe(detector.start(), images)[0].score[300:] for images in streams]
    states = [detector.observe(detector.start(), images[:300])[1] for images in streams]
    turns: list[list[torch.Tensor]] = [[], []]
    for place in range(300, 340):
        for number, images in enumerate(streams):
            output, states[number] = detector.observe(states[number], images[place : place + 1])
            turns[number].append(output.score)
    for scores, expected in zip(turns, alone, strict=True):
        assert_close(torch.cat(scores), expected)


def test_what_was_computed_for_a_state_goes_with_it():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 400)
    state = detector.observe(detector.start(), z[:300])[1]
    for row in z[300:400].split(1):  # three updates
        state = detector.observe(state, row)[1]
    assert len(detector._judge_few._tables) == 1


def test_a_session_that_has_judged_few_samples_is_pickled():
    labels = cone()
    session, (z, _) = Session(labels), two_clouds(labels, 320)
    session.observe(z[:300])
    session.observe(z[300:305])
    again = pickle.loads(pickle.dumps(session))
    assert_close(again.observe(z[305:]).score, session.observe(z[305:]).score)
