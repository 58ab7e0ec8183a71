from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.scan_cases import PAPER, case, difference
from helpers.streams import space, stream
from unseen.detectors import Framework, Online, OnlineID, PooledEvidence
from unseen.odds import logit
from unseen.scan import Anchors, Scan, naive
from unseen.scan.cuda import bindings, blas
from unseen.scan.cuda import scan as cuda
from unseen.scan.cuda.plan import make_plan
from unseen.scan.gate import decaying_steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

SHAPES = [  # samples, classes, width, share of teachers: one block and many, one row per thread and four
    (1, 1, 2, 1.0),
    (2, 3, 5, 1.0),
    (150, 40, 33, 0.5),
    (1500, 7, 6, 0.1),
    (700, 333, 17, 1.0),
    (300, 1000, 64, 0.5),
    (257, 2600, 31, 0.3),
    (130, 10_000, 48, 0.6),
    (60, 20_001, 9, 0.9),
]


def on_gpu(*shape: Any, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors, teacher logits, samples and steps on the GPU."""
    anchors, z, step = (x.cuda() for x in case(*shape, **options))
    return tuple(x.to(dtype) for x in (anchors, z @ anchors.T / 0.01, z, step))  # type: ignore[return-value]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cuda_matches_naive_in_float64(shape):
    inputs = on_gpu(*shape)
    got, expected = (backend.scan(*inputs, **PAPER) for backend in (cuda, naive))
    assert all(error < 1e-9 for error in difference(got, expected).values())
    assert torch.equal(got.read.label, expected.read.label)
    torch.testing.assert_close(got.read.rest, expected.read.rest, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [*SHAPES[2:], (2000, 1000, 512, 0.5), (2000, 10_000, 512, 0.25)], ids=str)
def test_float32_errs_at_most_four_times_as_much_as_naive(shape):
    exact_inputs = on_gpu(*shape)
    rough_inputs = [x.float() for x in exact_inputs]
    exact = naive.scan(*exact_inputs, **PAPER)
    plain = difference(naive.scan(*rough_inputs, **PAPER), exact)
    errors = difference(cuda.scan(*rough_inputs, **PAPER), exact)
    for what, error in errors.items():
        assert error < 4 * plain[what] + 1e-7, f"{what}: {error:.2e}, naive {plain[what]:.2e}"


def test_products_match_torch_within_their_precision():
    a, b = (torch.randn(3, n, 37, device="cuda", dtype=torch.float64) for n in (5, 70))
    exact = -0.5 * a @ b.mT
    torch.testing.assert_close(blas.product(a, b, scale=-0.5), exact, rtol=0, atol=1e-12)
    onto = exact.clone()
    blas.product(a[..., :20], b[..., :20], onto=onto)
    torch.testing.assert_close(onto, exact + a[..., :20] @ b[..., :20].mT, rtol=0, atol=1e-12)
    got = blas.product(a.float(), b.float(), scale=-0.5)
    assert float((got - exact).abs().max()) < 1e-5
    shared = blas.product(a, b[:1].expand(3, -1, -1))
    torch.testing.assert_close(shared, a @ b[:1].mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Online, OnlineID, Framework, PooledEvidence])
def test_detectors_return_the_same_readings_on_gpu_and_cpu(kind):
    labels = space(37, 1201, 64)
    z = stream(labels, 3000, noise=0.1)
    on_cpu, on_gpu = kind(labels), kind(labels.to(device="cuda"))
    expected, state = on_cpu.observe(on_cpu.start(), z)
    got, after = on_gpu.observe(on_gpu.start(), z.cuda())
    assert torch.equal(got.label.cpu(), expected.label)
    assert torch.equal(got.route.cpu(), expected.route)
    torch.testing.assert_close(got.score.cpu(), expected.score, rtol=0, atol=1e-7)
    later = on_gpu.score(after, z.cuda()).score.cpu()
    torch.testing.assert_close(later, on_cpu.score(state, z).score, rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_scan_does_not_wait_for_the_gpu_after_planning(monkeypatch):
    labels = space(37, 1201, 64, dtype=torch.float32).to(device="cuda")
    z = stream(space(37, 1201, 64, dtype=torch.float32), 3000, noise=0.1).cuda()
    online = Online(labels)
    sources, trust = online.sources_and_trust(z)
    expected, _ = online.learn_with_trust(online.start(), z, sources, trust)
    bound = logit(online.beta)
    sides = (trust <= -bound, trust >= bound)  # the order in which they are planned
    steps = [decaying_steps(side, torch.tensor(0).cuda(), rho=0.1, dtype=z.dtype)[0] for side in sides]
    plans = iter([make_plan(step[None], online.kappa) for step in steps])
    # the one place that may wait: before the scan
    monkeypatch.setattr(cuda, "make_plan", lambda step, kappa: next(plans))
    torch.cuda.set_sync_debug_mode("error")
    try:
        got, _ = online.learn_with_trust(online.start(), z, sources, trust)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(got.score, expected.score)


def test_observe_together_matches_observe_of_each_stream():
    labels = space(37, 1201, 64, dtype=torch.float32)
    z = stream(labels, 900, noise=0.1).cuda()
    online = Online(labels.to(device="cuda"))
    generator = torch.Generator().manual_seed(4)
    orders = [torch.randperm(900, generator=generator)[:n].cuda() for n in (900, 900, 170, 1)]
    _, later = online.observe(online.start(), z[:50])
    states = [online.start(), later, online.start(), later]
    got = online.observe_together(states, z, orders)
    for (one, after), state, order in zip(got, states, orders, strict=True):
        two, then = online.observe(state, z[order])
        assert torch.equal(one.route, two.route)
        torch.testing.assert_close(one.score, two.score, rtol=0, atol=2e-3)
        torch.testing.assert_close(after.ood_bank, then.ood_bank, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [12_288, 12_289, 16_000, 24_576])
def test_bank_sizes_around_the_change_of_rows_per_thread_match_naive(rows, dtype):
    """float64 banks of more than 12,288 rows were wrong once, and not always alike."""
    inputs = on_gpu(150, rows, 16, 0.8, dtype=dtype)
    first, *others = (cuda.scan(*inputs, **PAPER) for _ in range(4))
    assert all(same_bits(first, other) for other in others)
    exact = naive.scan(*(x.double() for x in inputs), **PAPER)
    limit = {torch.float32: 2e-3, torch.float64: 1e-9}[dtype]
    assert all(error < limit for error in difference(first, exact).values())


def same_bits(first: Scan, second: Scan) -> bool:
    pairs = zip((*first.read, first.bank), (*second.read, second.bank), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_uninitialised_memory_is_never_read(monkeypatch):
    inputs = on_gpu(700, 1000, 33, 0.5, dtype=torch.float32)
    clean = cuda.scan(*inputs, **PAPER)

    def poisoned(shape: int | tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        value = float("nan") if dtype.is_floating_point else -1
        return torch.full((shape,) if isinstance(shape, int) else shape, value, dtype=dtype, device=device)

    monkeypatch.setattr(bindings, "empty", poisoned)
    assert same_bits(clean, cuda.scan(*inputs, **PAPER))


def test_zero_padding_does_not_change_the_result_of_a_shorter_stream():
    anchors, _, z, step = on_gpu(300, 60, 20, 0.5)
    both, steps = torch.stack([z, z]), torch.stack([step, step])
    both[1, 170:], steps[1, 170:] = 0, 0
    many = cuda.scan_many(anchors, Anchors(anchors, 0.01), both, steps, **PAPER)
    short = naive.scan(anchors, z[:170] @ anchors.T / 0.01, z[:170], step[:170], **PAPER)
    torch.testing.assert_close(many.bank[1], short.bank, rtol=0, atol=1e-10)
    torch.testing.assert_close(many.read.energy[1, :170], short.read.energy, rtol=0, atol=1e-9)
