"""The commands from unknown to known, on a state made from the embedded images."""

from __future__ import annotations

import csv

import pytest
from safetensors.torch import save_file

from helpers import commands
from unseen import Session, checkpoint, demo
from unseen.errors import LabelError, SettingError, StateError
from unseen.features import load_features

WORDS = demo.vocabulary()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("discover") / "state.safetensors"
    pack = demo.load()
    pack = pack.shuffled(0)[:300]
    labels = pack.space.with_negatives(500)
    session = Session(labels)
    session.observe(pack.z, pack.keys)
    session.save(path)
    labels.save(checkpoint.space_path(path))
    return path


@pytest.fixture
def state(saved, tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_bytes(saved.read_bytes())
    checkpoint.space_path(path).write_bytes(checkpoint.space_path(saved).read_bytes())
    return path


def run(*words: object) -> list[dict]:
    return commands.rows(commands.run(*words, "--json"))


def word(name: str):
    return WORDS.vectors[WORDS.words.index(name)]


@pytest.fixture(autouse=True)
def embedded_text(monkeypatch):
    """Names are worded by the vectors of the demo: the offline text tower is not on every machine."""

    class Text:
        name, dim, fingerprint = "offline", 512, demo.load().space.manifest.get("encoder_fingerprint", "")

        def texts(self, prompts):
            return WORDS.vectors[
                [WORDS.words.index(prompt.removeprefix("The nice ").rstrip(".")) for prompt in prompts]
            ]

    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: Text())


def test_group_promote_undo_rename_retire_and_dismiss(state, tmp_path):
    report = ("--report", tmp_path / "groups.html")
    *groups, summary = run("group", "--state", state, "--words", "negatives", *report)
    page = report[1].read_text()
    assert page.count("<article") == len(groups)
    assert "http" not in page.replace("http-equiv", "")
    assert summary["summary"]["groups"] == len(groups) > 3
    ships = max(groups, key=lambda one: sum(key.startswith("ship/") for key in one["keys"]))
    word = ships["suggestions"][0]["word"]
    with pytest.raises(SettingError, match=f"got {ships['number']}; the images look like '{word}'"):
        commands.run("promote", ships["number"], "--state", state)
    (record,) = run("promote", ships["number"], "ship", "--state", state)
    assert record["now_named"] > 0.7 * ships["size"]
    assert checkpoint.find_space(state).names[-1] == "ship"
    (record,) = run("undo", "--state", state)
    assert record["exact"]
    assert "ship" not in checkpoint.find_space(state).names
    run("rename", "cat", "kitty", "--state", state)
    run("retire", "dog", "--state", state)
    run("dismiss", groups[0]["number"], "--state", state)
    labels = checkpoint.find_space(state)
    assert "kitty" in labels.names
    assert labels.negatives[-1] == "dog"
    *after, _ = run("group", "--state", state, "--words", "negatives")
    assert groups[0]["number"] not in [one["number"] for one in after]


def test_a_command_that_began_before_an_edit_does_not_overwrite_it(state, tmp_path, monkeypatch):
    """Two people at once: one promotes while the other one's command has loaded the state and reads its images."""
    save_file({"features": demo.load().z[:40].half()}, tmp_path / "more.safetensors")
    (*groups, _) = run("group", "--state", state, "--words", "negatives")

    def slowly(path):
        run("promote", groups[0]["number"], "ship", "--state", state)
        return load_features(path)

    monkeypatch.setattr("unseen.features.load_features", slowly)
    words = ["score", tmp_path / "more.safetensors", "--space", checkpoint.space_path(state), "--state", state]
    with pytest.raises(StateError, match="another command has changed since; nothing was learned or changed, run it"):
        commands.run(*words)
    assert checkpoint.find_space(state).names[-1] == "ship"


def test_explain_a_kept_image_by_its_key(state):
    kept = Session.load(state).reservoir.images
    (row,) = run("explain", kept.keys[0], "--state", state)
    assert row["key"] == kept.keys[0]
    assert row["why"].startswith(row["verdict"])
    text = commands.run("explain", kept.keys[0], "--state", state).stdout
    assert [one["key"] for one in run("explain", *kept.keys[:2], "--state", state)] == list(kept.keys[:2])
    assert "your names" in text
    assert "looks like" in text


def test_errors_say_what_to_do(state, tmp_path):
    for words, error, message in (
        (("promote", 1, "ship", "--state", tmp_path / "none"), StateError, "got no file"),
        (("undo", "--state", tmp_path / "none"), StateError, "got no file"),
        (("promote", 1, "ship", "--state", state), StateError, "there are no groups yet"),
        (("retire", "unicorn", "--state", state), LabelError, "unicorn"),
    ):
        with pytest.raises(error, match=message):
            commands.run(*words)
    assert "Missing option '--state'" in commands.run("group", code=2).output
    run("group", "--state", state, "--words", "negatives")
    with pytest.raises(StateError, match="expected the number of a group, got 99"):
        commands.run("promote", 99, "a ship", "--state", state)


def test_the_demo_goes_from_unknown_to_known(tmp_path):
    (row,) = run("demo", "--discover", "--report", tmp_path / "demo.html")
    assert {"digit", "ship", "clothing"} <= set(row["promoted"])
    *new, old = row["after"]
    ships = next(one for one in new if one["name"] == "ship")
    assert ships["shown"]["ship"] > 0.6 * ships["images"]
    assert old["shown"]["after"] >= 0.85 * old["shown"]["right before"]
    assert "data:image/jpeg" in (tmp_path / "demo.html").read_text()


def test_corrections_move_the_threshold_and_undo_takes_them_back(state, tmp_path):
    before = Session.load(state)
    kept = before.reservoir.images
    path = tmp_path / "corrections.csv"
    doubted = (before.threshold - kept.margin).masked_fill(kept.known, float("inf")).argsort()[:10].tolist()
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("key", "name"), *((kept.keys[row], "cat") for row in doubted)])
    (row,) = run("review", "--state", state, "--corrections", path, "-o", tmp_path / "out.csv")
    assert (row["corrected"], row["threshold_before"]) == (10, before.threshold)
    with (tmp_path / "out.csv").open(newline="") as file:
        users = {one["key"]: one["user"] for one in csv.DictReader(file)}
    assert len(users) == len(kept)
    assert users[kept.keys[doubted[0]]] == "cat"
    assert row["threshold"] == Session.load(state).threshold < before.threshold
    assert f"corrected 10 · threshold {row['threshold']:z.2f}" in commands.run("review", "--state", state).stdout
    run("undo", "--state", state)
    assert Session.load(state).threshold == pytest.approx(before.threshold)
    said = commands.run("review", "--state", state, "--corrections", path).stdout
    assert f"threshold {before.threshold:z.2f} → {row['threshold']:z.2f}" in said
