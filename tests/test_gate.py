from __future__ import annotations

import torch

from helpers.streams import space, stream
from unseen.detectors import OnlineID
from unseen.odds import TextLogits, logit, mcm, neglabel, text_logits
from unseen.scan.gate import decaying_steps, exact_near_bound, routes


def test_steps_decay_with_the_count_of_teaching_samples_and_go_on_where_they_stopped():
    taught = torch.tensor([True, False, True, True])
    step, seen = decaying_steps(taught, torch.tensor(5), rho=0.1, dtype=torch.float64)
    expected = torch.tensor([0.1 / 6**0.5, 0.0, 0.1 / 7**0.5, 0.1 / 8**0.5], dtype=torch.float64)
    torch.testing.assert_close(step, expected)
    assert int(seen) == 8
    first, middle = decaying_steps(taught[:2], torch.tensor(5), rho=0.1, dtype=torch.float64)
    second, _ = decaying_steps(taught[2:], middle, rho=0.1, dtype=torch.float64)
    assert torch.equal(torch.cat([first, second]), step)


def test_trust_near_the_bound_is_computed_in_float64():
    labels = space(dtype=torch.float32)
    z = stream(labels, 40)
    text = text_logits(labels, z, tau=0.01)
    exact = neglabel(text_logits(labels, z.double(), tau=0.01))
    bound = float(exact[7].abs()) + 1e-9  # a sample that lies on the bound as well as float64 can say
    far_from_bound = exact_near_bound(neglabel(text), neglabel, labels, z, tau=0.01, bound=1e9)
    assert far_from_bound.dtype == torch.float32  # nothing is computed again
    first = exact_near_bound(neglabel(text), neglabel, labels, z, tau=0.01, bound=bound)
    torch.testing.assert_close(first[7], exact[7], rtol=1e-12, atol=0)
    # shifting the logits by what another shape of product may cost changes no route
    shifted = neglabel(TextLogits(text.known + 1e-5, text.negative))
    second = exact_near_bound(shifted, neglabel, labels, z, tau=0.01, bound=bound)
    assert all(torch.equal(one, other) for one, other in zip(routes(first, bound), routes(second, bound), strict=True))


def test_a_negative_bound_routes_alike_however_the_stream_is_divided():
    labels = space(dtype=torch.float32)
    z = stream(labels, 40)
    exact = mcm(text_logits(labels, z.double(), tau=0.01))
    low = OnlineID(labels, beta=float(exact.min().sigmoid()))  # below 0.5, and one sample lies on the bound
    assert low.beta < 0.5
    shifted = mcm(TextLogits(*(part + 1e-5 * torch.randn(part.shape) for part in text_logits(labels, z, tau=0.01))))
    bound = logit(low.beta)
    near = [exact_near_bound(trust, mcm, labels, z, tau=0.01, bound=bound) for trust in (exact.float(), shifted)]
    assert torch.equal(near[0] >= bound, near[1] >= bound)
    whole = low.observe(low.start(), z)[0].route
    parts, state = [], low.start()
    for part in z.split(7):
        output, state = low.observe(state, part)
        parts.append(output.route)
    assert torch.equal(whole, torch.cat(parts))
