"""On a GPU streams are learned in lockstep by kernels; here they run on a CPU where Triton's interpreter is chosen.

TRITON_INTERPRET=1 python -m pytest tests/detectors/pooled/test_gpu.py
"""

from __future__ import annotations

from threading import Thread

import pytest
import torch

from helpers.interpreter import interpreted
from helpers.streams import cone, space, stream, two_clouds
from unseen import Session
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled.gpu.single_sample import AppendedRows
from unseen.detectors.pooled.gpu.streams import chunks, steps
from unseen.detectors.pooled.gpu.updates import newton_steps
from unseen.detectors.state import map_state
from unseen.errors import FeatureError
from unseen.gpu import recording


class Interpreted(PooledEvidence):
    """The recommended detector by way of kernels that are interpreted, not recorded."""

    def _streams(self, count, z):
        return self._gpu.acquire(count)


@pytest.fixture
def unrecorded(monkeypatch):
    monkeypatch.setattr(recording, "record", lambda work, changed: work)


@interpreted
@pytest.mark.parametrize("pieces", [[90], [1, 2, 30, 57]])
def test_kernels_compute_what_torch_does(unrecorded, pieces):
    labels = space(20, 300, 24)
    z, results = stream(labels, 90), []
    for detector in (PooledEvidence(labels), Interpreted(labels)):
        state, outputs = detector.start(), []
        for part in z.split(pieces):
            output, state = detector.observe(state, part)
            outputs.append(output)
        results.append((DetectorOutput.joined(outputs), state.sums, state.fitted))
    torch.testing.assert_close(results[0], results[1])


@interpreted
def test_streams_in_lockstep_read_as_one_after_another(unrecorded):
    labels = cone()
    detector, (z, _) = Interpreted(labels), two_clouds(labels, 60)
    orders = torch.stack([torch.arange(50), torch.arange(59, 9, -1)])
    found = detector._gpu.get(2).observe([detector.start()] * 2, z, orders)
    for (output, state), order in zip(found, orders, strict=True):
        one, end = PooledEvidence(labels).observe(detector.start(), z[order])
        torch.testing.assert_close((output, state.sums), (one, end.sums))


@interpreted
def test_one_sample_that_waits_is_read_as_in_torch(unrecorded):
    labels = space(20, 300, 24)
    detector, z = PooledEvidence(labels), stream(labels, 303)
    _, state = detector.observe(detector.start(), z[:300])
    for row in z[300:].split(1):
        streams = detector._gpu.get(1)
        output, taught = streams.single(state, row)
        expected, state = detector.observe(state, row)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(taught[0], state.pending.latest[int(state.pending.latest_size) - 1])
        finished, length = streams.finish_single(output)
        torch.testing.assert_close(finished.cpu(), output)
        assert length == pytest.approx(1)


def test_rows_that_are_appended_in_place_leave_what_earlier_states_count():
    appended, rows = AppendedRows(), torch.zeros(4, 2)
    one = appended.with_rows_at(rows, torch.full((1, 2), 1.0), 0)
    two = appended.with_rows_at(one, torch.full((1, 2), 2.0), 1)
    assert two is one
    assert not rows.any()  # the first had to be copied: nobody knows who else holds it
    branch = appended.with_rows_at(one, torch.full((1, 2), 3.0), 1)  # another state goes on from the first row
    assert two[:2].tolist() == [[1, 1], [2, 2]]
    assert branch[:2].tolist() == [[1, 1], [3, 3]]


@pytest.mark.gpu
def test_a_state_may_be_gone_on_from_twice_by_single_samples():
    labels = space(10, 300, 64)
    detector, z = PooledEvidence(labels.to(device="cuda")), stream(labels, 310).cuda()
    _, state = detector.observe(detector.start(), z[:300])
    _, begun = detector.observe(state, z[300:301])
    outputs = []
    for _ in range(2):
        after = begun
        for row in z[301:306].split(1):
            _, after = detector.observe(after, row)
        outputs.append(detector.observe(after, z[306:])[0])
    whole, _ = detector.observe(state, z[300:])
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0].score, whole.score[6:], rtol=1e-3, atol=1e-3)


def test_steps_end_where_updates_are_due():
    assert steps(0, 20) == [1] * 16 + [2] * 2
    assert steps(4096, 600) == [256, 256]
    assert steps(36, 3) == []


def test_chunks_are_whole_steps_of_at_most_so_many_samples():
    assert chunks([4, 4, 8, 8], 32, 12) == [([4, 4], 32), ([8], 40), ([8], 48)]


def test_fewer_newton_steps_follow_a_matrix_that_changes_less():
    assert [newton_steps(at) for at in (32, 1024, 4096, 16384)] == [4, 3, 2, 1]


@pytest.mark.gpu
@pytest.mark.parametrize(("known", "negative", "dim"), [(10, 300, 64), (200, 742, 512)])
@pytest.mark.parametrize("pieces", [[5000], [1, 2, 500, 1, 4000, *[1] * 300, 196]])
def test_readings_and_states_on_a_gpu_are_those_of_a_cpu(known, negative, dim, pieces):
    labels = space(known, negative, dim, dtype=torch.float32)
    z = stream(labels, 5000)
    results = []
    for place in ("cpu", "cuda"):
        detector = PooledEvidence(labels.to(device=place))
        state, outputs = detector.start(), []
        for part in z.to(place).split(pieces):
            output, state = detector.observe(state, part)
            outputs.append(output.cpu())
        results.append((DetectorOutput.joined(outputs), map_state(torch.Tensor.cpu, state)))
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
    for output in found:
        torch.testing.assert_close(output.score, alone.score, rtol=1e-3, atol=1e-2)


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
    streams = detector._gpu.get(1)
    recordings = streams.updates.recordings
    sizes = {int(name.split()[1].strip(",")) for name in recordings if name.startswith("learn")}
    assert sizes == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert all(isinstance(one, recording.Recording) for one in (*recordings.values(), streams.single_sample.run))


@pytest.mark.gpu
def test_streams_in_one_call_on_a_gpu_read_as_one_after_another():
    labels = space(10, 300, 64, dtype=torch.float32)
    detector, z = PooledEvidence(labels.to(device="cuda")), stream(labels, 3000).cuda()
    _, begun = detector.observe(detector.start(), z[:300])
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(3000, generator=generator)[:count].cuda() for count in (2000, 2000, 1500)]
    for start in (detector.start(), begun):
        for (one, end), order in zip(detector.observe_many([start] * 3, z, orders), orders, strict=True):
            two, same = detector.observe(start, z[order])
            torch.testing.assert_close(one.score, two.score, rtol=1e-3, atol=1e-2)
            torch.testing.assert_close(end.sums.sides.weight, same.sums.sides.weight, rtol=1e-3, atol=1e-2)
            assert int(end.seen) == int(same.seen)


@pytest.mark.gpu
def test_images_that_come_again_are_learned_once_on_a_gpu_too():
    labels = space(10, 300, 64, dtype=torch.float32)
    z = stream(labels, 1000)[torch.arange(3000) % 1000]
    (one, end), (two, same) = (
        detector.observe(detector.start(), z.to(place))
        for place in ("cpu", "cuda")
        for detector in [PooledEvidence(labels.to(device=place))]
    )
    torch.testing.assert_close(two.score.cpu(), one.score, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(same.sums.sides.weight.cpu(), end.sums.sides.weight, rtol=1e-3, atol=1e-2)
    assert float(end.sums.sides.weight.sum()) < 1100


@pytest.mark.gpu
def test_where_the_inverse_cannot_be_followed_it_is_computed_on_a_gpu():
    labels = space(10, 300, 64, dtype=torch.float32)
    z = stream(labels, 3000)
    z = z[PooledEvidence(labels).observe(PooledEvidence(labels).start(), z)[0].margin.argsort(descending=True)]
    one = PooledEvidence(labels).observe(PooledEvidence(labels).start(), z)[0]  # unknown images come last
    detector = PooledEvidence(labels.to(device="cuda"))
    two = detector.observe(detector.start(), z.cuda())[0].cpu()
    torch.testing.assert_close(two.score, one.score, rtol=1e-3, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [0.5, torch.nan])
def test_a_sample_on_a_gpu_that_is_no_unit_vector_is_refused(value):
    labels = space(10, 300, 64, dtype=torch.float32)
    detector, z = PooledEvidence(labels.to(device="cuda")), stream(labels, 400).cuda()
    _, state = detector.observe(detector.start(), z)
    with pytest.raises(FeatureError, match="expected"):
        detector.observe(state, value * z[:1])
    assert len(detector.observe(state, z[:0])[0].score) == 0
