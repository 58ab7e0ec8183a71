"""The choice of a backend, and the GPU's code as far as it runs without a GPU.

The launches (`gemm`, `learn`, `top`) are replaced by their definitions in torch; the rest is the code
that runs on a GPU. The launches themselves are tested in test_cuda.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.scan_cases import PAPER, case, difference
from helpers.streams import space, stream
from unseen import odds, scan
from unseen.detectors import Framework, Online, OnlineID
from unseen.errors import SettingError
from unseen.odds import Top
from unseen.scan import Anchors, blocked, naive
from unseen.scan.cuda import blas, build
from unseen.scan.cuda import scan as cuda
from unseen.scan.cuda.plan import Plan


def gemm(a: Tensor, b: Tensor, out: Tensor, scale: float, keep: float, types: blas.GemmTypes) -> None:
    assert types.result == (1 if out.dtype == torch.float64 else 0)
    assert types.numbers == {torch.float64: 1, torch.float32: 0}[a.dtype]
    assert a.stride(-1) == b.stride(-1) == out.stride(-1) == 1
    out.copy_(scale * (a.to(out.dtype) @ b.to(out.dtype).mT) + (keep * out if keep else 0))


def top(logits: Tensor, *, tau: float = 1.0, scale: Any = None, before: Any = None, rows: int = 1) -> Top:
    if scale is not None:
        block = torch.arange(len(logits)) // rows
        logits = logits * scale.reshape(-1, *scale.shape[-2:])[block, before.flatten().long()]
    return odds.top(logits / tau)


def learn(
    bank: Tensor, taught: Tensor, aim: Tensor, plan: Plan, blocks: slice, *, width: int, kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    streams, size, n, dim = taught.shape
    wide = torch.full((streams, size, bank.shape[1], width), float("nan"), dtype=bank.dtype)
    scale = torch.full((streams, size, n + 1, bank.shape[1]), float("nan"), dtype=bank.dtype)
    banks = []
    for s in range(streams):
        row = bank[s]
        for b in range(size):
            count = int(plan.counts[s, blocks.start + b])
            z, rate = taught[s, b, :count], plan.rate[s, blocks.start + b, :count]
            target = aim[s, b, :count] / rate.unsqueeze(1)
            coef, scales = blocked.learn(z @ row.T, z @ z.T, target, rate, kappa)
            wide[s, b] = 0
            wide[s, b, :, :count], wide[s, b, :, n : n + dim] = coef.T, row
            scale[s, b, : count + 1] = scales
            row = blocked.apply_update(row, blocked.BlockUpdate(z, coef, scales)) if count else row
        banks.append(row)
    return wide, scale, torch.stack(banks)


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setattr(blas, "gemm", gemm)
    monkeypatch.setattr(cuda, "top", top)
    monkeypatch.setattr(cuda, "learn", learn)
    monkeypatch.setattr(scan, "backend", lambda device: "cuda")
    monkeypatch.setattr(cuda, "run_both", lambda first, second, device: (first(), second()))


SHAPES = [(1, 1, 2, 1.0), (150, 40, 33, 0.5), (1500, 7, 6, 0.1), (700, 33, 17, 1.0), (40, 10, 1, 0.5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("memory", [1, 6 << 30])
def test_gpu_code_with_emulated_launches_matches_naive(emulated, shape, memory):
    anchors, z, step = case(*shape)
    expected = naive.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER)
    for teacher in (z @ anchors.T / 0.01, Anchors(anchors, 0.01)):
        got = cuda.scan(anchors, teacher, z, step, **PAPER, memory=memory)
        assert all(error < 1e-9 for error in difference(got, expected).values())
        assert torch.equal(got.read.label, expected.read.label)


def test_reads_of_the_gpu_code_are_as_exact_as_those_of_naive(emulated):
    anchors, z, step = case(400, 300, 512, 0.5)
    exact = naive.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER)
    rough = [x.float() for x in (anchors, z @ anchors.T / 0.01, z, step)]
    got, plain = cuda.scan(*rough, **PAPER), naive.scan(*rough, **PAPER)
    for what, error in difference(got, exact).items():
        assert error < 4 * difference(plain, exact)[what] + 1e-7, what


@pytest.mark.parametrize("kind", [Online, OnlineID, Framework])
def test_detectors_return_the_same_readings_through_the_gpu_code(emulated, monkeypatch, kind):
    labels = space(7, 40, 24)
    z = stream(labels, 700)
    detector = kind(labels)
    with monkeypatch.context() as plain:
        plain.setattr(scan, "backend", lambda device: "blocked")
        expected, state = detector.observe(detector.start(), z)
    monkeypatch.setattr("unseen.detectors.online.is_on_gpu", lambda z: True)
    got, after = detector.observe(detector.start(), z)
    assert detector.block_for(z) == 700
    assert torch.equal(got.route, expected.route)
    assert torch.equal(got.label, expected.label)
    torch.testing.assert_close(got.score, expected.score, rtol=0, atol=1e-9)
    for one, two in zip(after, state, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-11)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_observe_together_matches_observe_of_each_stream(request, monkeypatch, on_gpu):
    labels = space(7, 40, 24)
    z = stream(labels, 300)
    online = Online(labels)
    generator = torch.Generator().manual_seed(4)
    orders = [torch.randperm(300, generator=generator)[:n] for n in (300, 300, 170, 1)]
    _, later = online.observe(online.start(), z[:50])
    states = [online.start(), later, online.start(), later]
    expected = [online.observe(state, z[order]) for state, order in zip(states, orders, strict=True)]
    if on_gpu:
        request.getfixturevalue("emulated")
        monkeypatch.setattr("unseen.detectors.online.is_on_gpu", lambda z: True)
    got = online.observe_together(states, z, orders)
    for (one, after), (two, state) in zip(got, expected, strict=True):
        assert torch.equal(one.route, two.route)
        assert torch.equal(one.label, two.label)
        torch.testing.assert_close(one.score, two.score, rtol=0, atol=1e-9)
        for x, y in zip(after, state, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-11)


def test_targets_are_shared_only_where_images_occur_twice():
    labels = space(7, 40, 24)
    z, anchors = stream(labels, 20), Anchors(labels.id_anchors, 0.01)
    taught, once = torch.arange(20) % 3 == 0, torch.arange(20)[None]
    assert scan.shared_targets(anchors, z, taught, once) is anchors
    assert scan.shared_targets(anchors, z, taught & False, once.repeat(2, 1)) is anchors
    table = scan.shared_targets(anchors, z, taught, once.repeat(2, 1))
    assert isinstance(table, scan.SharedTargets)
    for i in taught.nonzero().flatten().tolist():
        expected = torch.softmax(z[i] @ labels.id_anchors.T / 0.01, dim=0)
        torch.testing.assert_close(table.rows[table.at[1, i]], expected)


def test_device_selects_the_backend_unless_one_is_named(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.delenv("UNSEEN_SCAN", raising=False)
    assert (scan.backend(cpu), scan.backend(gpu)) == ("blocked", "cuda")
    for name in ("naive", "blocked"):
        monkeypatch.setenv("UNSEEN_SCAN", name)
        assert scan.backend(cpu) == scan.backend(gpu) == name


def test_invalid_backends_shapes_and_dtypes_are_refused(monkeypatch):
    monkeypatch.setenv("UNSEEN_SCAN", "fast")
    with pytest.raises(SettingError, match=r"expected a scan out of naive, .*, got 'fast'"):
        scan.backend(torch.device("cpu"))
    monkeypatch.setenv("UNSEEN_SCAN", "cuda")
    with pytest.raises(SettingError, match=r"expected tensors on a CUDA device .* got cpu"):
        scan.scan(*case(3, 2, 2, 1.0)[:1], torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3), **PAPER)
    with pytest.raises(SettingError, match="expected at most 24576 rows in a bank on the GPU, got 24577"):
        cuda.scan(torch.zeros(24_577, 1), torch.zeros(1, 24_577), torch.zeros(1, 1), torch.zeros(1), **PAPER)
    halves = [x.half() for x in (*(torch.zeros(1, 1),) * 3, torch.zeros(1))]
    with pytest.raises(SettingError, match=r"expected float32 or float64 on the GPU, got torch\.float16; convert"):
        cuda.scan(*halves, **PAPER)


def fake_nvcc(folder: Path, *, fails: bool = False) -> Path:
    """A compiler that copies nothing but its name, or fails."""
    script = folder / "nvcc"
    body = (
        "echo 'error: no such thing' >&2; exit 2" if fails else 'while [ "$1" != -o ]; do shift; done; echo so > "$2"'
    )
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


def test_compiled_kernels_are_kept_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_nvcc", lambda: str(fake_nvcc(tmp_path)))
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    first, second = build.build(build.KERNELS, "sm_90"), build.build(build.KERNELS, "sm_90")
    assert first == second
    assert [*(tmp_path / "cache").iterdir()] == [first]
    (tmp_path / "closed").write_text("a file in the place of a folder")  # what even root cannot write into
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "closed"))
    with pytest.raises(SettingError, match=r"expected a folder to keep the compiled scan in, got .*closed"):
        build.build(build.KERNELS, "sm_90")


def test_compiler_errors_are_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_nvcc", lambda: str(fake_nvcc(tmp_path, fails=True)))
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    with pytest.raises(SettingError, match=r"got exit status 2(.|\n)*no such thing"):
        build.build(build.KERNELS, "sm_90")
