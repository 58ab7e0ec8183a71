from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unseen.encoders.catalogue import resolve_name
from unseen.encoders.offline.merging import Tokens, pairs
from unseen.errors import SettingError


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_most_similar_tokens_become_their_mean_weighted_by_patches():
    """Tokens 2 and 4 have the keys of 1 and 5; the class token, 0, has that of 3 and stays alone."""
    first, second, third = torch.eye(3)
    keys = torch.stack([third, first, first, third, second, second])[None]
    x, size = drawn(1, 6, 4), torch.tensor([[1.0, 2, 1, 1, 3, 1]])
    merged = Tokens(x, size).merged(keys, 2)
    expected = [x[0, 0], (2 * x[0, 1] + x[0, 2]) / 3, x[0, 3], (3 * x[0, 4] + x[0, 5]) / 4]
    torch.testing.assert_close(merged.x[0], torch.stack(expected))
    assert merged.size is not None
    assert merged.size.tolist() == [[1, 3, 1, 4]]


@pytest.mark.parametrize("tokens", [2, 5, 8])
def test_however_many_merges_the_class_token_and_all_patches_stay(tokens):
    x, state = drawn(3, tokens, 4), Tokens(drawn(3, tokens, 4))
    for _ in range(4):
        state = state.merged(drawn(3, state.x.shape[1], 2), 3)
    assert state.size is not None
    torch.testing.assert_close(state.x[:, 0], x[:, 0])
    torch.testing.assert_close(state.size.sum(1), torch.full((3,), float(tokens)))
    torch.testing.assert_close((state.x * state.size[..., None]).sum(1), x.sum(1))


def test_several_tokens_may_have_one_partner():
    keys = torch.tensor([[0.0, 1], [1, 0], [1, 0], [0, 1], [1, 0.1]])[None]
    gone, kept, partner = pairs(keys, 2)
    assert (sorted(gone[0].tolist()), kept.tolist(), partner.tolist()) == ([1, 2], [[0]], [[0, 0]])


def test_encoders_with_merges_have_names():
    assert resolve_name("offline-merge8") == resolve_name("offline-b16-merge8") == ("offline", "merge8")
    assert resolve_name("offline-b16-int8-merge12") == ("offline", "int8-merge12")
    for name in ("offline-merge0", "offline-merge40", "offline-fast"):
        with pytest.raises(SettingError, match="expected offline, offline-int8, or offline-merge1"):
            resolve_name(name)
