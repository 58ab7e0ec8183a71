from __future__ import annotations

import torch

from helpers.streams import space, stream
from unseen.text import mcm, neglabel, text_logits


def test_mcm_and_neglabel_are_the_log_odds_of_equations_2_and_3():
    labels = space()
    z = stream(labels)
    text = text_logits(labels, z, tau=0.1)
    known, both = z @ labels.id_anchors.T / 0.1, z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T / 0.1
    share = known.exp().sum(1) / both.exp().sum(1)
    torch.testing.assert_close(torch.sigmoid(neglabel(text)), share)
    torch.testing.assert_close(torch.sigmoid(mcm(text)), torch.softmax(known, 1).max(1).values)
