"""What a person tells a session, and judging again by everything learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import cone, space, stream, two_clouds
from unseen import LabelSpace, Session, Verdicts, demo, detectors
from unseen.discover import move_to_space
from unseen.errors import FeatureError, SettingError
from unseen.labels import Examples, with_examples
from unseen.labels.edits import without_name
from unseen.threshold import Adaptive, Fixed
from unseen_bench.demo import trial
from unseen_bench.evaluate import evaluate
from unseen_bench.trial import Trial

LABELS = cone(8, 60, 24)
Z, IS_KNOWN = two_clouds(LABELS, 400, noise=0.5)


def sparing(labels: LabelSpace) -> LabelSpace:
    """A label space with examples of every name, one of which it spares."""
    label = torch.arange(8 * len(labels.names)) % len(labels.names)
    noise = 0.3 * torch.randn(len(label), labels.dim, generator=torch.Generator().manual_seed(4))
    return with_examples(labels, Examples(normalize(labels.id_anchors.float()[label] + noise, dim=1), label))


def taught(labels: LabelSpace = LABELS, *, every: int = 128) -> Session:
    """A session that was told of everything there is to tell."""
    session = Session(sparing(labels), Adaptive(every=every))
    session.calibrate(Z[IS_KNOWN][:20])
    session.tell(Z[~IS_KNOWN][:12], [False] * 11 + [True])
    return session


def test_a_session_is_told_of_spared_examples_photos_and_corrected_verdicts() -> None:
    session = taught()
    spared = len(session.detector.labels.spared)
    assert spared == len(LABELS.names)
    assert (int(session.told.is_photo.sum()), int((~session.told.is_photo).sum())) == (20 + spared, 12)
    assert float(session.snapshot.threshold.told.photos.sum()) == pytest.approx(20 + spared)
    assert (session.told.known & ~session.told.is_photo).sum() == 1


@pytest.mark.parametrize("every", [128, 100])
@pytest.mark.parametrize("pieces", [[1] * 400, [5, 28, 0, 300, 67]])
def test_what_is_told_is_looked_at_alike_however_the_stream_is_divided_and_after_a_checkpoint(pieces, every) -> None:
    whole, parts, verdicts = taught(every=every), taught(every=every), []
    expected = whole.observe(Z)
    for number, part in enumerate(Z.split(pieces)):
        verdicts.append(parts.observe(part))
        if number == 1:
            parts = Session.load(parts.to_bytes(), parts.detector.labels)
    found = Verdicts.joined(verdicts)
    for column in ("margin", "threshold", "p_known"):
        torch.testing.assert_close(getattr(found, column), getattr(expected, column), rtol=1e-4, atol=1e-3)
    assert expected.threshold.unique().numel() > 10
    torch.testing.assert_close(parts.snapshot.threshold.told, whole.snapshot.threshold.told, rtol=0, atol=1e-3)
    truth = torch.where(IS_KNOWN, 0, -1)
    judged = evaluate(taught(every=every), Trial(Z, truth, (~IS_KNOWN).long(), ("a", "b"))).verdicts
    torch.testing.assert_close(judged.threshold, expected.threshold, rtol=1e-4, atol=1e-3)


def test_a_refused_call_teaches_nothing_where_it_would_be_divided() -> None:
    session, z = taught(), stream(LABELS, 64).clone()
    z[40] = torch.nan
    with pytest.raises(FeatureError, match="in row 40"):
        session.observe(z)
    assert int(session.snapshot.tally.seen) == 0


def test_photos_are_told_and_an_odd_one_is_left_out() -> None:
    labels = space()
    session, known = Session(labels), stream(labels, 300)
    session.observe(known[:150])
    known = known[session.score(known).margin > 5][:30]
    state, photos, before = (
        session.snapshot.detector,
        torch.cat([known, labels.ood_anchors[:1]]),
        session.recall_interval,
    )
    found = session.calibrate(photos, recall=0.9)
    assert found.odd == (30,)
    assert (found.images, found.recall, found.threshold) == (30, 0.9, session.threshold)
    assert session.recall_interval == (found.low, found.high)
    assert found.high - found.low < before.high - before.low
    assert session.snapshot.detector is state
    assert session.calibrate(photos[30:], keep_odd=True).images == 1
    assert len(session.told.z) == 31


def test_what_is_told_needs_margins_in_nats_and_a_threshold_that_follows_the_stream() -> None:
    with pytest.raises(SettingError, match="expected a detector whose margins are in nats, got 'neglabel'"):
        Session(detectors.make("neglabel", LABELS)).tell(Z[:1], [True])
    fixed = Session(sparing(LABELS), Fixed(0.5))
    fixed.observe(Z)
    assert fixed.threshold == 0.5
    session = taught()
    found = session.calibrate(Z[IS_KNOWN], guarantee=True)
    session.observe(Z)
    assert session.threshold == found.threshold


def test_a_retired_name_takes_its_spared_examples_along() -> None:
    labels = sparing(LABELS)
    session = Session(labels)
    session.observe(Z[:40])
    moved = move_to_space(session, without_name(labels, labels.names[0])).session
    assert len(moved.told.z) == len(labels.spared) - 1
    assert float(moved.snapshot.threshold.told.photos.sum()) == pytest.approx(len(labels.spared) - 1)
    none = move_to_space(session, replace(labels, spared=None)).session
    assert not bool(none.snapshot.threshold.told.photos.any())


# judging again


def balanced(verdicts: Verdicts, is_known: Tensor) -> float:
    """The mean of the shares of known images that are kept and of unknown ones that are not."""
    return float(((~verdicts.unknown)[is_known].double().mean() + verdicts.unknown[~is_known].double().mean()) / 2)


# an image of a folder is judged by the share of known ones in all of it; where they come last, those that come are
# rightly judged by more
@pytest.mark.parametrize(("order", "spare"), [("shuffled", 0.005), ("id_first", 0.005), ("ood_first", 0.03)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_early_images_are_judged_at_the_end_no_worse_than_as_they_came(order, spare, repeats) -> None:
    pack = trial().ordered(order, 0)
    pack = pack[torch.arange(0, len(pack.z), 3)]
    pack = pack[torch.arange(len(pack.z)).repeat_interleave(repeats)]
    session = Session(demo.load().space)
    live = session.observe(pack.z)
    late = session.rejudge(pack.z)
    early = torch.arange(len(pack.z)) < 100 * repeats
    assert balanced(late, pack.is_id) >= balanced(live, pack.is_id) - spare
    right = [verdicts.unknown != pack.is_id for verdicts in (live, late)]
    assert float(right[1][early].double().mean()) >= float(right[0][early].double().mean()) - 0.01


def test_copies_of_a_known_image_that_were_learned_as_unknown_do_not_stay_unknown_for_that_reason() -> None:
    pack, space = trial().ordered("shuffled", 0), demo.load().space.with_negatives(500)
    margin = Session(space).score(pack.z).margin
    doubted = pack.is_id.nonzero().squeeze(1)[margin[pack.is_id].argsort()[:4]]
    for row in doubted.tolist():
        rest = pack.z[torch.arange(0, len(pack.z), 3)]
        rest = rest[(rest != pack.z[row]).any(1)]
        once, five = Session(space), Session(space)
        assert once.observe(pack.z[row : row + 1])[0].unknown
        five.observe(pack.z[row : row + 1].expand(5, -1))
        for one in (once, five):
            one.observe(rest)
        found, expected = (one.score(pack.z[row : row + 1])[0] for one in (five, once))
        assert found.margin == pytest.approx(expected.margin, abs=0.3)


def test_judging_again_learns_nothing_and_counts_no_image_twice() -> None:
    session = taught()
    session.observe(Z[:150])
    since = session.snapshot
    session.observe(Z[150:301], [f"{i}.jpg" for i in range(151)])
    state = session.snapshot.detector
    margins = session.score(Z[150:301]).margin
    late = session.rejudge(Z[150:301], since=since)
    assert torch.equal(late.margin, margins)
    assert late.threshold.unique().tolist() == [session.threshold]
    assert session.snapshot.detector is state
    history, tally = session.snapshot.threshold, session.snapshot.tally
    assert float(history.counts.sum()) == pytest.approx(301)
    assert int(tally.seen) == 301
    assert int(tally.known) == int(since.tally.known) + int((~late.unknown).sum())
    kept = session.reservoir.images
    rows = kept.place >= 150
    torch.testing.assert_close(kept.margin[rows], late.margin[kept.place[rows] - 150].float())
    again = session.rejudge(Z[150:301], since=since)
    torch.testing.assert_close(again.threshold, late.threshold)
    session.observe(Z[301:])
    history = session.snapshot.threshold
    assert float(history.counts.sum()) + int(history.waiting) == pytest.approx(400)
    assert int(history.seen) == int(session.snapshot.tally.seen) == 400


def test_a_session_whose_threshold_follows_no_stream_judges_again_under_the_same_threshold() -> None:
    session = Session(LABELS, Fixed(0.5))
    session.observe(Z[:50])
    assert session.rejudge(Z[:50]).threshold.unique().tolist() == [0.5]
    session = Session(LABELS)
    since = session.snapshot
    session.calibrate(Z[IS_KNOWN][:40], guarantee=True)
    session.observe(Z)
    found = session.rejudge(Z, since=since)
    assert found.threshold.unique().tolist() == [session.threshold]
    session.calibrate(Z[IS_KNOWN][:40])
    session.rejudge(Z, since=since)
