from __future__ import annotations

from contextlib import contextmanager
from threading import Thread

import pytest
import torch

from helpers.streams import cone, space, stream, two_clouds
from unseen import Session
from unseen.detectors import PooledEvidence, Reading
from unseen.detectors.pooled.replay import Replay, Unsolved
from unseen.detectors.state import map_state


class Eager(Replay):
    """What graphs record, run as it is: for machines without a GPU."""

    def step(self, state, block):
        return self.advance(state, block)

    def single(self, state, z):
        self.load(state)
        return self.look(state, z)


class Replayed(PooledEvidence):
    """The recommended detector by way of `Replay.advance`."""

    @contextmanager
    def _replaying(self, z):
        yield Eager(lambda z: self._frozen(z)[0], self._judge, self.labels)


@pytest.mark.parametrize("count", [40, 300, 1100])
def test_what_graphs_record_equals_what_a_cpu_does(count):
    labels = cone()
    z, _ = two_clouds(labels, count)
    (one, end), (two, same) = (kind(labels).observe(kind(labels).start(), z) for kind in (PooledEvidence, Replayed))
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(end.sums, same.sums)
    torch.testing.assert_close(end.fitted, same.fitted)
    assert int(end.seen) == int(same.seen) == count


def test_single_samples_by_way_of_what_graphs_record_equal_those_of_a_cpu():
    labels = cone()
    z, _ = two_clouds(labels, 300)
    parts = []
    for detector in (PooledEvidence(labels), Replayed(labels)):
        state, readings = detector.start(), []
        for part in z.split([250, *[1] * 50]):
            reading, state = detector.observe(state, part)
            readings.append(reading)
        parts.append((Reading.joined(readings), state))
    torch.testing.assert_close(parts[0], parts[1])


def test_where_the_inverse_cannot_be_followed_the_block_is_learned_again_with_factors():
    labels = cone()
    z, is_known = two_clouds(labels, 3000, noise=0.1)
    z = torch.cat([z[is_known][:700], z[~is_known][:300]])  # the other side appears all at once
    one, two = (kind(labels).observe(kind(labels).start(), z)[0] for kind in (PooledEvidence, Replayed))
    torch.testing.assert_close(one, two)
    broken = Replayed(labels)
    broken.__dict__["_learned"] = raising_once(broken._learned)
    torch.testing.assert_close(broken.observe(broken.start(), z)[0], one)


def raising_once(learned):
    def learn(state, z, replay):
        if replay:
            raise Unsolved
        return learned(state, z, replay)

    return learn


def test_a_state_is_not_written_to_by_what_graphs_record():
    labels = cone()
    detector, (z, _) = Replayed(labels), two_clouds(labels, 700)
    _, state = detector.observe(detector.start(), z[:512])
    kept = map_state(torch.clone, state)
    detector.observe(state, z[512:])
    torch.testing.assert_close(state, kept, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("known", "negative", "dim"), [(10, 300, 64), (200, 742, 512)])
@pytest.mark.parametrize("pieces", [[5000], [1, 2, 500, 1, 4000, *[1] * 300, 196]])
def test_readings_and_states_on_a_gpu_are_those_of_a_cpu(known, negative, dim, pieces):
    labels = space(known, negative, dim, dtype=torch.float32)
    z = stream(labels, 5000)
    results = []
    for place in ("cpu", "cuda"):
        detector = PooledEvidence(labels.to(device=place))
        state, readings = detector.start(), []
        for part in z.to(place).split(pieces):
            reading, state = detector.observe(state, part)
            readings.append(reading.cpu())
        results.append((Reading.joined(readings), map_state(torch.Tensor.cpu, state)))
    (one, end), (two, same) = results
    torch.testing.assert_close(two.score, one.score, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(two.baseline, one.baseline, rtol=1e-3, atol=1e-3)
    assert float((two.label == one.label).double().mean()) > 0.999
    assert float((two.route == one.route).double().mean()) > 0.999
    torch.testing.assert_close(same.sums.sides.weight, end.sums.sides.weight, rtol=1e-3, atol=1e-2)
    assert int(same.seen) == int(end.seen) == 5000


@pytest.mark.gpu
def test_a_state_on_a_gpu_is_not_written_to_and_two_streams_do_not_mix():
    labels = space(10, 300, 64, dtype=torch.float32)
    detector, z = PooledEvidence(labels.to(device="cuda")), stream(labels, 4000).cuda()
    _, state = detector.observe(detector.start(), z[:1000])
    kept = map_state(torch.clone, state)
    first, _ = detector.observe(state, z[1000:])
    detector.observe(detector.start(), z.flip(0))
    again, _ = detector.observe(state, z[1000:])
    torch.testing.assert_close(state, kept, rtol=0, atol=0)
    torch.testing.assert_close(again.score, first.score, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_threads_that_share_a_detector_on_a_gpu_get_the_readings_of_one():
    labels = space(10, 300, 64, dtype=torch.float32)
    detector, z = PooledEvidence(labels.to(device="cuda")), stream(labels, 3000).cuda()
    alone, found = detector.observe(detector.start(), z)[0].cpu(), []
    threads = [Thread(target=lambda: found.append(detector.observe(detector.start(), z)[0].cpu())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reading in found:
        torch.testing.assert_close(reading.score, alone.score, rtol=1e-3, atol=1e-2)


@pytest.mark.gpu
def test_verdicts_of_a_session_on_a_gpu_are_those_of_a_cpu():
    labels = space(20, 300, 64, dtype=torch.float32)
    z = stream(labels, 3000)
    one, two = Session(labels), Session(labels.to(device="cuda"))
    cpu, gpu = one.observe(z), two.observe(z.cuda())
    torch.testing.assert_close(gpu.margin, cpu.margin, rtol=1e-3, atol=1e-2)
    assert float((gpu.known == cpu.known).double().mean()) > 0.995


@pytest.mark.gpu
@pytest.mark.filterwarnings("error")
def test_every_size_of_step_is_recorded():
    labels = space(10, 300, 64, dtype=torch.float32)
    detector = PooledEvidence(labels.to(device="cuda"))
    _, state = detector.observe(detector.start(), stream(labels, 3000).cuda())
    detector.observe(state, stream(labels, 1).cuda())
    assert sorted(detector._replay.recordings) == [0, 4, 8, 16, 32, 64, 128, 256]
    assert None not in detector._replay.recordings.values()
