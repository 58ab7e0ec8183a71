from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.scan_cases import PAPER, case, difference
from helpers.streams import unit
from unseen.scan import blocked, naive


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(0, 150),
    classes=st.integers(1, 40),
    dim=st.integers(2, 33),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    rho=st.sampled_from([0.0, 0.05, 0.1]),
    seed=st.integers(0, 1000),
)
def test_blocked_matches_naive_in_float64(samples, classes, dim, share, rho, seed):
    anchors, z, step = case(samples, classes, dim, share, rho=rho, seed=seed)
    got, expected = (backend.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER) for backend in (blocked, naive))
    assert all(error < 1e-9 for error in difference(got, expected).values())


@pytest.mark.parametrize(("rows", "teachers"), [(1, 1), (7, 3), (16, 64), (512, 5)])
def test_block_size_does_not_change_results(rows, teachers):
    anchors, z, step = case(120, 20, 16, 0.6)
    inputs = anchors, z @ anchors.T / 0.01, z, step
    got, expected = blocked.scan(*inputs, **PAPER, rows=rows, teachers=teachers), naive.scan(*inputs, **PAPER)
    assert all(error < 1e-10 for error in difference(got, expected).values())


@pytest.mark.parametrize("split", [0, 37, 120])
@pytest.mark.parametrize("backend", [naive, blocked])
def test_a_scan_resumes_at_any_sample(backend, split):
    anchors, z, step = case(120, 20, 16, 0.6)
    whole = backend.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER)
    first = backend.scan(anchors, z[:split] @ anchors.T / 0.01, z[:split], step[:split], **PAPER)
    second = backend.scan(first.bank, z[split:] @ anchors.T / 0.01, z[split:], step[split:], **PAPER)
    torch.testing.assert_close(second.bank, whole.bank, rtol=0, atol=1e-12)
    torch.testing.assert_close(second.read.energy, whole.read.energy[split:], rtol=0, atol=1e-10)


def test_float32_blocked_errs_no_more_than_float32_naive_does():
    anchors, z, step = case(300, 50, 64, 0.5)
    exact = naive.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER)
    errors = {}
    for backend in (naive, blocked):
        got = backend.scan(anchors.float(), (z @ anchors.T / 0.01).float(), z.float(), step.float(), **PAPER)
        errors[backend] = difference(got, exact)
    for what, error in errors[blocked].items():
        assert error < 4 * errors[naive][what] + 1e-7, what


def test_naive_is_a_gradient_step_on_equation_7():
    anchors, z, _ = case(1, 12, 8, 1.0)
    bank = unit(12, 8, seed=9).requires_grad_()
    target = torch.softmax(anchors @ z[0] / 0.01, dim=0)
    loss = -(target * torch.log_softmax(bank @ z[0] / 0.05, dim=0)).sum()
    (gradient,) = torch.autograd.grad(loss, bank)
    expected = torch.nn.functional.normalize(bank.detach() - 0.07 * gradient, dim=-1)
    got = naive.scan(bank.detach(), z @ anchors.T / 0.01, z, torch.tensor([0.07], dtype=torch.float64), **PAPER)
    torch.testing.assert_close(got.bank, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [naive, blocked])
def test_log_of_soft_targets_can_be_passed_as_logits(backend):
    anchors, z, step = case(30, 10, 8, 1.0)
    own = torch.softmax(z @ anchors.T / 0.01, dim=1).flip(1)
    got = backend.scan(anchors, own.log(), z, step, **PAPER)
    expected = naive.update(anchors, z[0], own[0], step[0], kappa=0.05)
    torch.testing.assert_close(backend.scan(anchors, own.log(), z[:1], step[:1], **PAPER).bank, expected)
    assert not torch.allclose(got.bank, backend.scan(anchors, z @ anchors.T / 0.01, z, step, **PAPER).bank)


def test_huge_steps_do_not_overflow_a_block():
    anchors, z, _ = case(200, 10, 8, 1.0)
    step = torch.full((200,), 5.0)
    exact = naive.scan(anchors, z @ anchors.T / 0.01, z, step.double(), **PAPER)
    got = blocked.scan(anchors.float(), (z @ anchors.T / 0.01).float(), z.float(), step, **PAPER)
    rough = naive.scan(anchors.float(), (z @ anchors.T / 0.01).float(), z.float(), step, **PAPER)
    assert bool(got.bank.isfinite().all())
    assert difference(got, exact)["bank"] < 4 * difference(rough, exact)["bank"] + 1e-6
