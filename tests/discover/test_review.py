"""A person's word on images: it moves the threshold, is undone, and exported."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from unseen import Session
from unseen.discover import undo
from unseen.discover.review import ReviewedImage, coco, correct, cvat, fiftyone, label_studio, reviewed
from unseen.errors import DataError


def most_doubted(session: Session, count: int = 10) -> list[str]:
    """The kept unknown images that are nearest to the threshold."""
    kept = session.reservoir.images
    unknown = kept.select(~kept.known)
    return [unknown.keys[row] for row in unknown.margin.argsort(descending=True)[:count].tolist()]


def test_a_word_is_kept_apart_and_changes_no_verdict_of_a_kept_image(session):
    keys = session.reservoir.images.keys
    done = correct(session, {keys[0]: " horse ", keys[1]: ""})
    rows = {row.key: row for row in reviewed(done.session)}
    assert (rows[keys[0]].user, rows[keys[1]].user) == ("horse", "unknown")
    assert rows[keys[0]].label == "horse"
    same = [row._replace(user=None, verdict="") for row in reviewed(done.session)]
    assert same == [row._replace(verdict="") for row in reviewed(session)]  # whether doubtful follows what is said
    assert done.session.snapshot.detector is session.snapshot.detector


def test_corrections_move_threshold_and_p_known_and_undo_takes_them_back(session, pack):
    keys = most_doubted(session)
    known = correct(session, dict.fromkeys(keys, "cat")).session
    unknown = correct(session, dict.fromkeys(keys, "unicorn")).session  # none of the names
    assert known.threshold < session.threshold - 0.2
    assert unknown.threshold >= session.threshold
    before, after = (one.score(pack.z[500:]).p_known for one in (session, known))
    assert bool((after >= before).all())
    assert float(after.mean()) > float(before.mean())
    back = undo(known, None).session
    assert back.reservoir.corrections == {}
    assert back.threshold == pytest.approx(session.threshold, abs=0.01)


def test_corrections_go_on_to_teach_after_a_checkpoint_and_in_later_images(session, pack, tmp_path):
    keys = most_doubted(session)
    done = correct(session, dict.fromkeys(keys, "cat")).session
    done.save(tmp_path / "state.safetensors")
    again = Session.load(tmp_path / "state.safetensors")
    assert again.threshold == done.threshold
    plain = session.at(session.snapshot)
    assert torch.equal(done.observe(pack.z[500:]).threshold, again.observe(pack.z[500:]).threshold)
    plain.observe(pack.z[500:])
    assert done.threshold < plain.threshold - 0.2


def test_words_on_images_that_are_not_kept_are_refused(session):
    with pytest.raises(DataError, match="expected keys of kept images, got 1 others such as 'nowhere'"):
        correct(session, {"nowhere": "dog"})
    with pytest.raises(DataError, match="got none"):
        correct(session, {})


def test_exports_have_one_label_per_image(session):
    key = session.reservoir.images.keys[0]
    rows = reviewed(correct(session, {key: "unicorn"}).session)
    found = coco(rows)
    names = {one["id"]: one["name"] for one in found["categories"]}
    assert names[found["annotations"][0]["category_id"]] == "unicorn"
    assert len(found["images"]) == len(found["annotations"]) == len(rows)
    other = fiftyone(rows)
    assert other["classes"][other["labels"][key]] == "unicorn"


ROWS = [
    ReviewedImage("a b.jpg", "known", "dog", "dog", 1.0, 0, "<cat>"),
    ReviewedImage("c&d.jpg", "unknown", None, "dog", -1.0, 0, None),
]


def test_tasks_of_label_studio_tell_words_of_a_person_from_verdicts():
    person, verdict = label_studio(ROWS)
    assert person["data"]["image"] == "/data/local-files/?d=a%20b.jpg"
    assert person["annotations"][0]["result"][0]["value"] == {"choices": ["<cat>"]}
    assert verdict["predictions"][0]["result"][0]["value"] == {"choices": ["unknown"]}
    assert "predictions" not in person
    assert "annotations" not in verdict


def test_cvat_reads_a_tag_for_each_image():
    images = ElementTree.fromstring(cvat(ROWS)).findall("image")
    assert [one.attrib for one in images] == [{"id": "0", "name": "a b.jpg"}, {"id": "1", "name": "c&d.jpg"}]
    tags = [one.find("tag").attrib for one in images]
    assert tags == [{"label": "<cat>", "source": "manual"}, {"label": "unknown", "source": "auto"}]
