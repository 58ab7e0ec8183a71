from __future__ import annotations

import torch

from helpers.streams import space, stream
from unseen import gate
from unseen.gate import decaying_steps, mcm, neglabel, read_text, settled


def test_trust_is_the_log_odds_of_equations_2_and_3():
    labels = space()
    z = stream(labels)
    text = read_text(labels, z, tau=0.1)
    known, both = z @ labels.id_anchors.T / 0.1, z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T / 0.1
    share = known.exp().sum(1) / both.exp().sum(1)
    torch.testing.assert_close(torch.sigmoid(neglabel(text)), share)
    torch.testing.assert_close(torch.sigmoid(mcm(text)), torch.softmax(known, 1).max(1).values)


def test_steps_decay_with_the_count_of_teaching_samples_and_go_on_where_they_stopped():
    taught = torch.tensor([True, False, True, True])
    step, seen = decaying_steps(taught, torch.tensor(5), rho=0.1, dtype=torch.float64)
    expected = torch.tensor([0.1 / 6**0.5, 0.0, 0.1 / 7**0.5, 0.1 / 8**0.5], dtype=torch.float64)
    torch.testing.assert_close(step, expected)
    assert int(seen) == 8
    first, middle = decaying_steps(taught[:2], torch.tensor(5), rho=0.1, dtype=torch.float64)
    second, _ = decaying_steps(taught[2:], middle, rho=0.1, dtype=torch.float64)
    assert torch.equal(torch.cat([first, second]), step)


def test_trust_near_the_bound_is_decided_in_float64():
    labels = space(dtype=torch.float32)
    z = stream(labels, 40)
    text = read_text(labels, z, tau=0.01)
    exact = neglabel(read_text(labels, z.double(), tau=0.01))
    bound = float(exact[7].abs()) + 1e-9  # a sample that lies on the bound as well as float64 can say
    rough = settled(neglabel, text, labels, z, tau=0.01, bound=1e9)
    assert rough.dtype == torch.float32  # nobody is near: nothing is computed again
    sharp = settled(neglabel, text, labels, z, tau=0.01, bound=bound)
    torch.testing.assert_close(sharp[7], exact[7], rtol=1e-12, atol=0)
    # shifting the first guess by what another shape of product may cost changes no decision
    moved = gate.Text(text.known + 1e-5, text.negative)
    again = settled(neglabel, moved, labels, z, tau=0.01, bound=bound)
    assert torch.equal(sharp >= bound, again >= bound)
    assert torch.equal(sharp <= -bound, again <= -bound)
