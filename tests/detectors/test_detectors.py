from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from helpers.methods import ALL
from helpers.streams import space, stream, unit
from unseen import LabelSpace
from unseen.detectors import Detector, make
from unseen.detectors.neglabel import random_groups
from unseen.errors import FeatureError, LabelError, SettingError
from unseen_bench.checks import check_detector, example_stream
from unseen_bench.methods.zeroshot.adaneg import AdaNeg

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ALL},
    "neglabel, 7 groups": {"groups": 7},
    "adaneg, task": {"adaptive": "task"},
    "adaneg, 2 slots": {"slots": 2},
    "tanl, short memory": {"queue": 5, "top": 20, "window": 13, "gap": 0.1},
    "framework, own targets": {"targets": lambda z: (z[:, :8] * 3).softmax(dim=1)},
}
IN_FLOAT32 = ["pooled", "online", "online-id", "framework", "neglabel", "adaneg", "tanl, short memory"]


def variant(name: str, labels: LabelSpace) -> Detector[Any]:
    return make(name.split(",")[0], labels, **VARIANTS[name])


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float64) for name in VARIANTS] + [(name, torch.float32) for name in IN_FLOAT32]
)
def test_every_detector_passes_every_check(name: str, dtype: torch.dtype) -> None:
    check_detector(variant(name, space(8, 60, 24, dtype=dtype)))


@pytest.mark.parametrize("name", [name for name, options in VARIANTS.items() if "targets" not in options])
def test_permuting_the_names_permutes_labels_and_no_score(name: str) -> None:
    labels = space(8, 60, 24)
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    turned = replace(labels, names=tuple(labels.names[i] for i in order), id_anchors=labels.id_anchors[order])
    one, two = variant(name, labels), variant(name, turned)
    z = example_stream(one)
    (expected, _), (got, _) = one.observe(one.start(), z), two.observe(two.start(), z)
    torch.testing.assert_close(got.score, expected.score, rtol=1e-7, atol=1e-9)
    assert torch.equal(order[got.label], expected.label)
    assert torch.equal(got.route, expected.route)


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_stays_close_to_float64_at_the_start(name: str) -> None:
    labels = space(8, 60, 24)
    exact, rounded = variant(name, labels), variant(name, labels.to(dtype=torch.float32))
    z = example_stream(exact)
    expected = exact.score(exact.start(), z).score
    got = rounded.score(rounded.start(), z).score
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4)


# Every formula again, written down literally


def shares(known: Tensor, negative: Tensor, members: Tensor, tau: float) -> Tensor:
    """The mean over groups of the known names' share of the softmax."""
    e, n = (known / tau).exp().sum(-1), (negative / tau).exp()
    return torch.stack([e / (e + n[..., group].sum(-1)) for group in members]).mean(0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[LabelSpace, Tensor]:
    known, negative, dim = draw(st.integers(2, 20)), draw(st.integers(4, 200)), draw(st.integers(8, 64))
    labels = space(known, negative, dim)
    return labels, stream(labels, draw(st.integers(1, 30)), seed=draw(st.integers(0, 1000)), noise=0.3)


def literal_mcm(labels: LabelSpace, z: Tensor) -> Tensor:
    p = (z @ labels.id_anchors.T).softmax(1).amax(1)
    return (p / (1 - p)).log()


def literal_neglabel(labels: LabelSpace, z: Tensor) -> Tensor:
    known, negative = (z @ anchors.T for anchors in (labels.id_anchors, labels.ood_anchors))
    return ((known / 0.1).exp().sum(1) / (negative / 0.1).exp().sum(1)).log()


def literal_groups(labels: LabelSpace, z: Tensor) -> Tensor:
    members = random_groups(labels, 4, 0)
    p = shares(z @ labels.id_anchors.T, z @ labels.ood_anchors.T, members, tau=0.1)
    return (p / (1 - p)).log()


def literal_eoe(labels: LabelSpace, z: Tensor) -> Tensor:
    p = (z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T).softmax(1)
    return p[:, : len(labels.names)].amax(1) - 0.25 * p[:, len(labels.names) :].amax(1)


LITERAL: dict[str, tuple[str, dict[str, Any], Callable[[LabelSpace, Tensor], Tensor]]] = {
    "mcm": ("mcm", {}, literal_mcm),
    "maxlogit": ("maxlogit", {}, lambda labels, z: (z @ labels.id_anchors.T).amax(1)),
    "energy": ("energy", {}, lambda labels, z: (z @ labels.id_anchors.T).exp().sum(1).log()),
    "entropy": (
        "entropy",
        {},
        lambda labels, z: -torch.distributions.Categorical(logits=z @ labels.id_anchors.T).entropy(),
    ),
    "neglabel, one group": ("neglabel", {"tau": 0.1, "groups": 1}, literal_neglabel),
    "neglabel, groups": ("neglabel", {"tau": 0.1, "groups": 4}, literal_groups),
    "csp": ("csp", {"tau": 0.1, "groups": 4}, literal_groups),
    "eoe": ("eoe", {}, literal_eoe),
    "variance": ("variance", {}, lambda labels, z: (z @ labels.id_anchors.T).softmax(1).var(1, correction=0)),
}


@pytest.mark.parametrize("which", LITERAL)
@settings(max_examples=10, deadline=None)
@given(case=cases())
def test_frozen_scores_match_their_formulas(which: str, case: tuple[LabelSpace, Tensor]) -> None:
    name, options, formula = LITERAL[which]
    labels, z = case
    detector = make(name, labels, **options)
    output = detector.score(detector.start(), z)
    torch.testing.assert_close(output.score, formula(labels, z), rtol=1e-6, atol=1e-9)
    assert torch.equal(output.label, (z @ labels.id_anchors.T).argmax(1))


@settings(max_examples=15, deadline=None)
@given(case=cases(), alpha=st.floats(0.05, 1), groups=st.integers(1, 4))
def test_dnm_matches_its_formula_with_z_kept_above_zero(
    case: tuple[LabelSpace, Tensor], alpha: float, groups: int
) -> None:
    labels, z = case
    detector: Any = make("dnm", labels, alpha=alpha, groups=groups, tau=0.1)
    known, negative = ((z @ anchors.T / 0.1).exp() for anchors in (labels.id_anchors, labels.ood_anchors))
    mass, size = known.sum(1), len(labels.negatives) // groups
    expected = torch.zeros(len(z), dtype=torch.float64)
    for group in random_groups(labels, groups, 0):
        mean = negative[:, group].mean(1)
        Z = mass + size * (mean / alpha - (1 - alpha) / alpha * known.mean(1))
        Z = torch.maximum(Z, 1e-3 * mass + size * mean / alpha)
        expected += mass / Z / groups
    score = detector.score(None, z).score
    torch.testing.assert_close(torch.sigmoid(score) / detector.kept_share, expected, rtol=1e-9, atol=1e-12)


def test_gl_mcm_adds_the_best_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = space()
    z = unit(20, 1 + 5, 16, seed=4)
    p = (z @ labels.id_anchors.T).softmax(-1)
    detector = make("gl-mcm", labels)
    expected = p[:, 0].amax(-1) + 0.5 * p[:, 1:].amax((1, 2))
    torch.testing.assert_close(detector.score(None, z).score, expected)
    monkeypatch.setattr(type(detector), "logits_at_once", 100)
    torch.testing.assert_close(detector.score(None, z).score, expected)


def test_infoood_is_the_reconstructed_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, z = space(), unit(6, 1 + 3, 16, seed=4)
    detector = make("infoood-reconstructed", labels, groups=5, tau_view=0.3, tau_image=0.4, tau_prior=2.0, smooth=0.7)
    texts, known = torch.cat([labels.id_anchors, labels.ood_anchors]), len(labels.names)
    expected = torch.zeros(6, known, dtype=z.dtype)
    for i, (image, *views) in enumerate(z):
        for view in views:
            e = (texts @ view / 0.3).exp()
            groups = [e[:known].sum() + e[known:][group].sum() for group in detector.members]  # type: ignore[attr-defined]
            s1 = sum(e[:known] / total for total in groups) / 5
            ahead = image + 0.25 * (image - view)
            g = (texts @ (ahead / ahead.norm()) / 0.4).exp()
            s2 = g[:known] / ((texts @ view / 2.0).softmax(0) * g).sum()
            expected[i] += (s1.log() + s2.log()) / 3
    for logits in (2**22, 1):
        monkeypatch.setattr(type(detector), "logits_at_once", logits)
        got = detector.score(None, z)
        torch.testing.assert_close(got.score, 0.7 * (expected / 0.7).exp().sum(1).log())
        torch.testing.assert_close(got.label, expected.argmax(1))


class LiteralAdaNeg:
    """Memory as plain lists, one sample at a time; slot 0 is the text."""

    def __init__(self, detector: AdaNeg) -> None:
        self.detector, labels = detector, detector.labels
        self.known = len(labels.names)
        self.memory = [[(0.0, anchor)] for anchor in torch.cat([labels.id_anchors, labels.ood_anchors])]
        self.free = detector.slots * self.known + len(labels.negatives)

    def share(self, prototypes: Tensor, x: Tensor) -> Tensor:
        cosine = prototypes @ x
        return shares(cosine[: self.known], cosine[self.known :], self.detector.members, self.detector.tau)

    def prototype(self, slots: list[tuple[float, Tensor]], x: Tensor) -> Tensor:
        images = torch.stack([image for _, image in slots])
        if self.detector.adaptive == "task":
            return normalize(images.mean(0), dim=0)
        weight = torch.exp(-self.detector.beta * (1 - images @ x))
        return normalize((weight[:, None] * images).sum(0), dim=0)

    def keep(self, x: Tensor, start: int, text: Tensor) -> None:
        p = (text / self.detector.tau).softmax(0)
        entropy = -float(torch.special.xlogy(p, p).sum())
        slots = self.memory[start + int(text.argmax())]
        if len(slots) <= self.detector.slots and self.free:
            slots.append((entropy, x))
            self.free -= 1
        elif len(slots) > 1:
            worst = max(range(1, len(slots)), key=lambda i: slots[i][0])
            if entropy < slots[worst][0]:
                slots[worst] = (entropy, x)

    def observe(self, x: Tensor) -> tuple[float, int, int]:
        anchors = torch.stack([slots[0][1] for slots in self.memory])
        text = anchors @ x
        p0 = self.share(anchors, x)
        route = int(p0 > self.detector.sure) - int(p0 < 1 - self.detector.sure)
        if route > 0:
            self.keep(x, 0, text[: self.known])
        elif route < 0:
            self.keep(x, self.known, text[self.known :])
        adapted = torch.stack([self.prototype(slots, x) for slots in self.memory])
        score = self.share(adapted, x) + self.detector.lam * p0
        names = self.names(text) + self.detector.lam * self.names(adapted @ x)
        return float(score), int(names.argmax()), route

    def names(self, cosine: Tensor) -> Tensor:
        """Each known name's mean probability over the groups."""
        e, n = ((part / self.detector.tau).exp() for part in cosine.split([self.known, len(cosine) - self.known]))
        return torch.stack([e / (e.sum() + n[group].sum()) for group in self.detector.members]).mean(0)


@pytest.mark.parametrize("adaptive", ["sample", "task"])
@pytest.mark.parametrize("slots", [1, 2, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_adaneg_matches_a_sample_by_sample_reference(adaptive: str, slots: int, seed: int) -> None:
    labels = space(3, 12, 12)
    detector = AdaNeg(labels, adaptive=adaptive, slots=slots, tau=0.05)
    z = stream(labels, 90, seed=seed, noise=0.3)
    literal = LiteralAdaNeg(detector)
    expected = [literal.observe(x) for x in z]
    output, memory = detector.observe(detector.start(), z)
    score = torch.sigmoid(output.score) * (1 + detector.lam)
    torch.testing.assert_close(score, torch.tensor([row[0] for row in expected], dtype=torch.float64))
    assert output.label.tolist() == [row[1] for row in expected]
    assert output.route.tolist() == [row[2] for row in expected]
    assert (memory.rows >= 0).sum(1).tolist() == [len(kept) - 1 for kept in literal.memory]
    later = stream(labels, 20, seed=seed + 50)
    frozen = detector.score(memory, later)
    torch.testing.assert_close(frozen.score[0], detector.score(memory, later[:1]).score[0])


class LiteralTANL:
    def __init__(self, detector: Any) -> None:
        self.detector, labels = detector, detector.labels
        seed = self.activation(labels.id_anchors).mean(0)
        self.queues: list[list[Tensor]] = [[seed] * min(detector.queue, len(labels.names)), []]
        self.shares: list[float] = []
        if detector.noise is not None:
            self.queues[1] = list(self.activation(detector.noise[: detector.queue]))
            self.shares = [self.share(x) for x in (*labels.id_anchors, *detector.noise[: detector.queue])]

    def activation(self, z: Tensor) -> Tensor:
        labels = self.detector.labels
        logits = z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T / self.detector.tau
        return logits.softmax(-1)[..., len(labels.names) :]

    def share(self, x: Tensor) -> float:
        labels, tau = self.detector.labels, self.detector.tau
        means = [torch.stack(queue).mean(0) if queue else torch.zeros(len(labels.negatives)) for queue in self.queues]
        active = (means[0] - means[1]).argsort(stable=True)[: self.detector.top]
        known, negative = (labels.id_anchors @ x / tau).exp().sum(), (labels.ood_anchors @ x / tau).exp()
        prefixes = [known / (known + negative[active[: i + 1]].sum()) for i in range(len(active))]
        return float(torch.stack(prefixes).mean())

    def threshold(self) -> float:
        kept = torch.tensor(self.shares[-self.detector.window :], dtype=torch.float64)
        criteria = []
        for i in range(100):
            above, below = kept[kept >= i / 100], kept[kept < i / 100]
            if len(above) and len(below):
                within = sum(len(side) * side.var(correction=0) for side in (above, below)) / len(kept)
                criteria.append(float(within))
            else:
                criteria.append(math.inf)
        best = [i for i, value in enumerate(criteria) if value == min(criteria) or value < min(criteria) + 1e-9]
        return best[len(best) // 2] / 100

    def observe(self, x: Tensor) -> tuple[float, int]:
        share, gap = self.share(x), self.detector.gap
        self.shares.append(share)
        threshold = self.threshold()
        sides = (share > threshold + gap * (1 - threshold), share < threshold - gap * threshold)
        for queue, confident in zip(self.queues, sides, strict=True):
            if confident:
                queue.append(self.activation(x))
                del queue[: -self.detector.queue]
        return self.share(x), int(sides[0]) - int(sides[1])


@pytest.mark.parametrize(
    "options",
    [{}, {"queue": 4, "top": 6, "window": 11}, {"gap": 0.0, "top": 1}, {"noise": unit(7, 12, seed=3), "queue": 5}],
    ids=["published", "small", "one label", "noise images"],
)
def test_tanl_matches_a_sample_by_sample_reference(options: dict[str, Any]) -> None:
    labels = space(4, 15, 12)
    detector = make("tanl", labels, tau=0.05, **options)
    z = stream(labels, 50, noise=0.3)
    literal = LiteralTANL(detector)
    expected = [literal.observe(x) for x in z]
    output, _ = detector.observe(detector.start(), z)
    assert output.route.tolist() == [route for _, route in expected]
    assert {-1, 1} <= set(output.route.tolist())
    torch.testing.assert_close(torch.sigmoid(output.score), torch.tensor([share for share, _ in expected]).double())


def test_reneg_lowers_tanl_by_the_images_of_negatives_it_trusts() -> None:
    labels, tau = space(4, 15, 12), 0.05
    z = stream(labels, 120, noise=0.3)
    base = make("tanl", labels, tau=tau)
    share, _ = base.observe(base.start(), z)
    catches: dict[int, list[tuple[float, int, Tensor]]] = {}
    known: dict[int, list[Tensor]] = {}
    expected = []
    for x, score, route in zip(z, share.score, share.route.tolist(), strict=True):
        every = torch.tensor([one for some in catches.values() for one, _, _ in some])
        mass = 0.0
        for own in catches.values():
            n = len(own)
            bound = (sum(one for one, _, _ in own) + 2 * every.mean()) / (n + 2) / every.std(correction=0)
            bound -= 0.5 / math.sqrt(n + 2)
            votes = (sum(vote for _, vote, _ in own) + 1) / (n + 2)
            trust = torch.sigmoid((bound - 1) / 0.5) * torch.sigmoid(torch.tensor((votes - 0.5) / 0.1))
            likeness = normalize(torch.stack([image for _, _, image in own]).sum(0), dim=0) @ x / tau
            mass += float(trust * likeness.exp()) if n >= 2 else 0.0
        own_mass = sum(float((normalize(torch.stack(some).sum(0), dim=0) @ x / tau).exp()) for some in known.values())
        penalty = min(0.0, math.log(own_mass / mass)) if own_mass and mass else 0.0
        expected.append(0.75 * float(score) + 0.25 * penalty)
        cosine, other = labels.id_anchors @ x, labels.ood_anchors @ x
        if other.max() > cosine.max():
            margin = float(other.max() - cosine.max())
            catches.setdefault(int(other.argmax()), []).append((margin, route < 0, x))
        if (cosine / tau).softmax(0).max() >= 0.5 and route > 0:
            known.setdefault(int(cosine.argmax()), []).append(x)
    detector = make("reneg", labels, tau=tau)
    output, _ = detector.observe(detector.start(), z)
    assert bool((output.score < 0.75 * share.score).any())
    torch.testing.assert_close(output.score, torch.tensor(expected, dtype=torch.float64))


def test_clipscope_divides_by_the_share_of_a_name_among_the_predictions_before() -> None:
    labels = space(4, 15, 12)
    z = stream(labels, 60, noise=0.3)
    counts, expected = torch.ones(4), []
    for x in z:
        known, negative = ((anchors @ x / 0.05).exp() for anchors in (labels.id_anchors, labels.ood_anchors))
        best = int(known.argmax())
        mass = known.sum() / (known.sum() + negative.sum())
        expected.append(float(known[best] / known.sum() * mass / (counts[best] / counts.sum())))
        counts[best] += 1
    detector = make("clipscope", labels, tau=0.05)
    output, state = detector.observe(detector.start(), z)
    torch.testing.assert_close(output.score.exp(), torch.tensor(expected, dtype=torch.float64))
    assert state.predicted.tolist() == counts.tolist()


def literal_online(labels: LabelSpace, z: Tensor, beta: float) -> tuple[list[float], list[int]]:
    """Algorithm 1 as printed."""
    anchors, count, scores, routes = [labels.id_anchors, labels.ood_anchors], [0, 0], [], []
    banks = list(anchors)
    for x in z:
        e = [(side @ x / 0.01).exp().sum() for side in anchors]
        trust = e[0] / (e[0] + e[1])
        side = 0 if trust >= beta else 1 if trust <= 1 - beta else None
        if side is not None:
            count[side] += 1
            pi, p = (banks[side] @ x / 0.05).softmax(0), (anchors[side] @ x / 0.01).softmax(0)
            move = 0.1 / math.sqrt(count[side]) / 0.05 * torch.outer(pi - p, x)
            banks[side] = normalize(banks[side] - move, dim=-1)
        e = [(bank @ x / 0.01).exp().sum() for bank in banks]
        scores.append(float((e[0] / e[1]).log()))
        routes.append(0 if side is None else 1 - 2 * side)
    return scores, routes


@settings(max_examples=15, deadline=None)
@given(case=cases(), beta=st.sampled_from([0.6, 0.95, 0.999]))
def test_online_matches_algorithm_1(case: tuple[LabelSpace, Tensor], beta: float) -> None:
    labels, z = case
    detector = make("online", labels, beta=beta)
    scores, routes = literal_online(labels, z, beta)
    output, _ = detector.observe(detector.start(), z)
    torch.testing.assert_close(output.score, torch.tensor(scores, dtype=torch.float64), rtol=1e-7, atol=1e-7)
    assert output.route.tolist() == routes


def test_online_id_matches_algorithm_2() -> None:
    labels, z = space(5, 30, 16), stream(space(5, 30, 16), noise=0.3)
    bank, seen, expected = labels.id_anchors, 0, []
    for x in z:
        p = (labels.id_anchors @ x / 0.01).softmax(0)
        if p.max() >= 0.95:
            seen += 1
            gradient = torch.outer((bank @ x / 0.05).softmax(0) - p, x) / 0.05
            bank = normalize(bank - 0.1 / math.sqrt(seen) * gradient, dim=-1)
        logits = bank @ x / 0.01
        best = int(logits.argmax())
        expected.append(float(logits[best] - torch.cat([logits[:best], logits[best + 1 :]]).logsumexp(0)))
    detector = make("online-id", labels)
    output, state = detector.observe(detector.start(), z)
    assert 0 < seen < len(z)
    torch.testing.assert_close(output.score, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(state.bank, bank)


@pytest.mark.parametrize("count", [742, 10_499])
@pytest.mark.parametrize("name", ["neglabel", "csp", "dnm"])
def test_the_published_hundred_groups_fit_published_label_spaces(name: str, count: int) -> None:
    assert make(name, space(3, count, 4)).members.shape == (100, count // 100)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nobody", {}, "expected a detector out of adaneg, .* got 'nobody'"),
        ("mcm", {"kappa": 1}, "expected settings of 'mcm', got \\['kappa'\\]"),
        ("mcm", {"tau": 0}, "expected tau above 0, got 0"),
        ("energy", {"tau": math.inf}, "expected tau above 0, got inf"),
        ("entropy", {"tau": -1}, "expected tau above 0"),
        ("neglabel", {"tau": math.nan}, "expected tau above 0, got nan"),
        ("neglabel", {"groups": 101}, "expected groups in \\[1, 100\\], got 101"),
        ("csp", {"groups": 0}, "expected groups in \\[1, 100\\], got 0"),
        ("dnm", {"alpha": 0}, "expected alpha in \\(0, 1\\], got 0"),
        ("eoe", {"beta": -1}, "expected beta in"),
        ("eoe", {"tau": 0}, "expected tau above 0"),
        ("infoood-reconstructed", {"step": -1}, "expected step in"),
        ("infoood-reconstructed", {"groups": 0}, "expected groups in \\[1, 100\\], got 0"),
        ("gl-mcm", {"lam": -1}, "expected lam in"),
        ("gl-mcm", {"tau": 0}, "expected tau above 0"),
        ("adaneg", {"adaptive": "both"}, "expected adaptive out of sample, task, got 'both'"),
        ("adaneg", {"slots": 0}, "expected slots in"),
        ("adaneg", {"sure": 0.4}, "expected sure in"),
        ("adaneg", {"lam": -0.1}, "expected lam in"),
        ("adaneg", {"groups": 31}, "expected groups in \\[1, 30\\], got 31"),
        ("adaneg", {"beta": 0}, "expected beta above 0"),
        ("tanl", {"queue": 0}, "expected queue in"),
        ("tanl", {"top": 0}, "expected top in"),
        ("tanl", {"window": 0}, "expected window in"),
        ("tanl", {"gap": 1.5}, "expected gap in"),
        ("online", {"beta": 0.5}, "expected beta in \\(0.5, 1\\], got 0.5"),
        ("online", {"rho": -1}, "expected rho in"),
        ("online-id", {"beta": 2}, "expected beta in"),
        ("framework", {"kappa": 0}, "expected kappa above 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(name: str, options: dict[str, Any], words: str, labels: LabelSpace) -> None:
    with pytest.raises(SettingError, match=words):
        make(name, labels, **options)


@pytest.mark.parametrize("name", [name for name, kind in ALL.items() if kind.needs_negatives])
def test_a_label_space_without_negatives_is_refused(name: str) -> None:
    with pytest.raises(LabelError, match=f"expected a label space with negatives for '{name}', got none"):
        make(name, space(3, 0, 8))


def test_images_without_patches_are_refused_by_gl_mcm(labels: LabelSpace) -> None:
    detector = make("gl-mcm", labels)
    with pytest.raises(FeatureError, match="expected at least one patch per image"):
        detector.score(None, unit(3, 1, 16))
    with pytest.raises(FeatureError, match=r"expected features of shape \[n, 1 \+ patches, 16\].* got \[3, 16\]"):
        detector.score(None, unit(3, 16))
    with pytest.raises(FeatureError, match="expected at least one view per image for 'infoood-reconstructed'"):
        make("infoood-reconstructed", labels).score(None, unit(3, 1, 16))


@pytest.mark.parametrize(
    ("z", "words"),
    [
        (unit(16), r"expected features of shape \[n, 16\].* got \[16\]; pass a batch \(z\[None\]\)"),
        (unit(2, 8), r"expected features of shape \[n, 16\].* got \[2, 8\]"),
        (torch.ones(2, 16, dtype=torch.int64), "expected floating-point features, got torch.int64"),
        (torch.full((2, 16), math.nan), "expected finite features, got NaN or infinity in row 0"),
        (torch.stack([unit(16), torch.zeros(16)]), "expected unit features, got a zero vector in row 1"),
        (3 * unit(2, 16), "expected unit features, got a norm of 3 in row 0"),
        (unit(2, 16).to("meta"), "expected features on cpu like the label space, got meta"),
    ],
    ids=["one vector", "wrong width", "integers", "NaN", "zero", "not unit", "elsewhere"],
)
def test_invalid_features_are_refused(z: Tensor, words: str, labels: LabelSpace) -> None:
    with pytest.raises(FeatureError, match=words):
        make("neglabel", labels).score(None, z)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (lambda z: z[:, :3], r"expected soft targets of shape \[5, 6\]"),
        (lambda z: -torch.ones(len(z), 6), "without negative entries"),
        (lambda z: torch.ones(len(z), 6), "expected soft targets that sum to 1"),
    ],
)
def test_soft_targets_that_are_not_distributions_are_refused(
    targets: Callable[[Tensor], Tensor], words: str, labels: LabelSpace
) -> None:
    detector = make("framework", labels, targets=targets)
    with pytest.raises(FeatureError, match=words):
        detector.observe(detector.start(), unit(5, 16))
