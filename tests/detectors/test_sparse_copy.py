"""Copies of tensors with few filled rows: the same bits, and no memory for the rest."""

import resource
from pathlib import Path

import pytest
import torch

from unseen import Session, checkpoint, detectors
from unseen.detectors.pooled.names import NameSums
from unseen.detectors.sparse_copy import LARGE, filled_rows, sparse_copy, untouched_zeros
from unseen.threshold import Adaptive

ROWS, WIDTH = 40_000, 256  # 41 MB
SMALL = 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def few_filled(rows: int = ROWS) -> torch.Tensor:
    whole = untouched_zeros(torch.empty(rows, WIDTH))
    whole[5], whole[7, 3], whole[rows - 1, 0] = torch.randn(WIDTH), -0.0, torch.nan
    return whole


@pytest.mark.parametrize("rows", [8, LARGE // WIDTH // 4, 4 * LARGE // WIDTH])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_copy_has_the_same_bits_and_memory_of_its_own(rows: int, share: float) -> None:
    whole = few_filled(rows)
    copied = sparse_copy(whole, filled_rows(whole), share=share)
    assert torch.equal(copied.view(torch.int32), whole.view(torch.int32))
    assert copied.data_ptr() % 64 == 0
    copied.fill_(1)
    assert not whole[0].any()


def test_a_row_of_negative_zeros_is_filled() -> None:
    assert filled_rows(few_filled()).nonzero().flatten().tolist() == [5, 7, ROWS - 1]


@pytest.mark.parametrize("shape", [(3 * LARGE,), (3 * LARGE // 64, 64), (3 * LARGE // 64, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float64])
def test_tensors_of_any_shape_and_kind_are_copied(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    whole = torch.zeros(shape, dtype=dtype)
    whole[[1, 5, -1]] = 1
    assert filled_rows(whole).nonzero().flatten().tolist() == [1, 5, len(whole) - 1]
    assert torch.equal(sparse_copy(whole, filled_rows(whole), share=0.5), whole)


def test_a_session_with_a_long_window_is_resumed(labels) -> None:
    session = Session(detectors.make("mcm", labels), Adaptive(window=LARGE // 4))
    resumed = Session.load(session.to_bytes(), labels)
    assert torch.equal(resumed.snapshot.threshold.ring, session.snapshot.threshold.ring)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_names_without_images_take_no_memory() -> None:
    sums, before = NameSums(torch.zeros(ROWS), untouched_zeros(torch.empty(ROWS, WIDTH))), resident_bytes()
    for name in range(3):
        sums = sums.updated(torch.tensor([[name]]), torch.ones(1, 1), torch.ones(1, WIDTH))
    assert resident_bytes() - before < SMALL
    assert sums.images[:4].tolist() == sums.total[:4, 0].tolist() == [1, 1, 1, 0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_restored_state_takes_memory_for_what_it_has_learned(tmp_path: Path) -> None:
    start = NameSums(torch.zeros(ROWS), untouched_zeros(torch.empty(ROWS, WIDTH)))
    taught = start.updated(torch.tensor([[9]]), torch.ones(1, 1), torch.ones(1, WIDTH))
    checkpoint.save(tmp_path / "state", {"sums": taught}, {})
    found = checkpoint.load(tmp_path / "state").states["sums"]
    found["total"].sum()  # the file is in memory before we look
    before = resident_bytes()
    again = checkpoint.restore_state(start, found)
    assert resident_bytes() - before < SMALL
    assert torch.equal(again.total, taught.total)
