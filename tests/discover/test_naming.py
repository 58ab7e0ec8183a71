"""Names for groups of images."""

from __future__ import annotations

import torch

from unseen.discover import Suggestion
from unseen.discover.naming import Families


def test_a_word_stands_for_its_kinds_where_no_kind_takes_most_of_the_family() -> None:
    words = ("Bunk-bed", "camp bed", "single bed", "sofa bed", "bed", "bedstraw", "sheet")
    spread = torch.tensor([0.15, 0.14, 0.13, 0.12, 0.01, 0.16, 0.29])
    assert Families(words).suggest(spread)[0] == Suggestion("bed", 0.55)
    one_kind = torch.tensor([0.55, 0.01, 0.01, 0.01, 0.05, 0.1, 0.27])
    found = Families(words).suggest(one_kind)
    assert [one.word for one in found[:2]] == ["Bunk-bed", "sheet"]
    assert Suggestion("bed", 0.05) in found
    assert [one.word for one in Families(("ship", "car")).suggest(torch.tensor([0.4, 0.6]))] == ["car", "ship"]
