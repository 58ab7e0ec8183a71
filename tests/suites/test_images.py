from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch.nn.functional import normalize

from helpers import suite_files
from helpers.commands import run
from helpers.tiny_models import save_clip
from unseen import detectors
from unseen.errors import DataError, SettingError
from unseen.images import Image
from unseen_bench import run as bench
from unseen_bench import suites
from unseen_bench.suites import loading
from unseen_bench.suites.images import read_classes
from unseen_bench.suites.loading import VIEWS, random_crop

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (50, 60, 220),
    "grey": (128, 128, 128),
    "yellow": (220, 210, 40),
    "violet": (150, 40, 190),
    "white": (240, 240, 240),
}
TABLE = """
about = "three colours against two others"
[labels]
names = "classes.txt"
words = "words.txt"
negatives = 4
[known]
lists = ["benchmark_imglist/toy/test_toy.txt"]
under = "images"
expected = 24
[unknown.grey]
lists = ["benchmark_imglist/toy/nowhere.txt", "benchmark_imglist/toy/test_grey.txt"]
under = "images"
expected = 8
[unknown.yellow]
folders = ["images/yellow"]
expected = 10
unclean = true
[unknown.violet]
folders = ["images/violet"]
"""


class Colours:
    """The mean colour of a picture, or the colour a text names: images and texts in one space."""

    name, dim, fingerprint = "colours", 3, "c0" * 32

    def images(self, batch):
        return self._unit([image.pixels.resize((1, 1)).getpixel((0, 0)) for image in batch])

    def texts(self, prompts):
        return self._unit([next((c for name, c in COLOURS.items() if name in p), (90, 90, 90)) for p in prompts])

    def patches(self, batch):
        """The left and the right half of each picture."""
        halves = [image.pixels.resize((2, 1)) for image in batch]
        return torch.stack([self._unit([half.getpixel((x, 0)) for x in (0, 1)]) for half in halves])

    def _unit(self, colours):
        return normalize(torch.tensor(colours, dtype=torch.float32) - 100.0, dim=-1)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A small tree in OpenOOD's layout; one listed picture is absent, one is torn."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    lists = root / "benchmark_imglist" / "toy"
    lists.mkdir(parents=True)
    known = [paint(root, f"{name}/{i}.png", name) for name in ("red", "green", "blue") for i in range(8)]
    (lists / "test_toy.txt").write_text("".join(f"{path} {i // 8}\n" for i, path in enumerate(known)))
    grey = [paint(root, f"grey/{i}.png", "grey") for i in range(8)]
    (lists / "test_grey.txt").write_text("".join(f"{path} -1\n" for path in [*grey, "grey/gone.png"]))
    (root / "images" / grey[0]).write_bytes(b"torn")
    for i in range(10):
        paint(root, f"yellow/{i}.png", "yellow")
    (root / "classes.txt").write_text("n00000001 red\nn00000002 green\nn00000003 blue\n")
    (root / "words.txt").write_text("grey\nyellow\nviolet\nwhite\n")
    (root / "toy.toml").write_text(TABLE)
    return root


@pytest.fixture
def colours(monkeypatch):
    monkeypatch.setattr(loading, "load_encoder", lambda name: Colours())


def paint(root, path, colour):
    file = root / "images" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(crc32(path.encode())).integers(-20, 20, (12, 12, 3))
    Pillow.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)).save(file)
    return path


def test_inventory_compares_found_with_expected_counts(root):
    found = {one.set: one for one in suites.inventory(str(root / "toy.toml"), root)}
    assert (found["known"].images, found["known"].is_complete) == (24, True)
    assert (found["grey"].images, found["grey"].absent, found["grey"].is_complete) == (8, 1, False)
    assert (found["yellow"].images, found["yellow"].unclean, found["yellow"].is_complete) == (10, True, True)
    assert (found["violet"].images, found["violet"].where, found["violet"].is_complete) == (0, (), False)


def test_images_are_encoded_scored_and_reported(root, colours, tmp_path):
    out = tmp_path / "out"
    chosen = ("--detectors", "neglabel,online,oracle-online", "--seeds", 1)
    result = run("bench", root / "toy.toml", "--data", root, *chosen, "-o", out, code=1)  # a set is missing
    assert "grey" in result.stdout
    assert "violet" not in result.stdout
    assert "yellow*" in (out / "toy.html").read_text()
    suite = suites.load_images(str(root / "toy.toml"), root)
    assert suite.pool.source.bincount().tolist() == [24, 7, 10]  # the torn picture is left out, not replaced
    assert suite.labels.names == ("red", "green", "blue")
    assert suite.pool.label[:24].tolist() == [i // 8 for i in range(24)]


def test_each_method_reads_its_own_label_space_and_the_row_says_so(root, colours):
    suite = suites.load_images(str(root / "toy.toml"), root)
    spaces = {name: suite.labels_of(name) for name in ("mcm", "neglabel", "csp", "tanl", "clipscope", "online")}
    prompts = ["a photo of a {}", "the nice {}", "The nice {}."]
    assert [spaces[name].prompt for name in ("mcm", "neglabel", "online")] == prompts
    assert spaces["csp"].prompt.startswith("a close-up photo of the nice {}. | ")
    assert [len(space.negatives) for space in spaces.values()] == [0, 4, 0, 4, 4, 4]
    assert suite.labels_of("online") is suite.labels
    texts = {name: row_of(suite, name)["text"] for name in ("neglabel", "neglabel space=tanl", "tanl")}
    assert texts["neglabel"] == "own: the nice {}, 4 negatives by neglabel"
    assert texts["neglabel space=tanl"] == texts["tanl"] == "own: The nice {}., 4 negatives by tanl"


def row_of(suite, name):
    return bench.execute(suite, bench.list_runs(suite, names=(name,), orders=("shuffled",), seeds=1)[0]).row


def test_gl_mcm_runs_on_images_with_the_best_patch_of_each(root, colours):
    suite = suites.load_images(str(root / "toy.toml"), root)
    assert row_of(suite, "gl-mcm")["auroc"] > 0.9
    labels = suite.labels_of("gl-mcm")
    assert suite.with_parts("patches", labels).pool.z.shape == (41, 2, 3)
    detector = detectors.make("gl-mcm", labels)
    entries = [Image("", Pillow.open(root / "images" / "red" / f"{i}.png")) for i in range(8)]
    every = torch.cat([suite.pool.z[:8, None], Colours().patches(entries)], dim=1)
    best = suite.with_parts("patches", labels).pool.z[:8]
    torch.testing.assert_close(detector.score(None, best).score, detector.score(None, every).score)


def test_infoood_runs_on_images_with_views_of_each(root, colours):
    suite = suites.load_images(str(root / "toy.toml"), root)
    row = row_of(suite, "infoood-reconstructed")
    assert row["auroc"] > 0.9
    assert row["text"].startswith("own: the nice {}")
    z = suite.with_parts("views", suite.labels).pool.z
    assert z.shape == (41, 1 + VIEWS, 3)
    torch.testing.assert_close(z[:, 0], suite.pool.z)
    picture = Image("", Pillow.open(root / "images" / "red" / "0.png"))
    crops = [random_crop(picture, number) for number in range(VIEWS)]
    torch.testing.assert_close(z[0, 1:], Colours().images(crops))
    assert len({crop.pixels.tobytes() for crop in crops}) > VIEWS // 2  # a picture of 12 pixels has few crops
    assert crops[0].pixels.tobytes() == random_crop(picture, 0).pixels.tobytes()


def test_images_are_encoded_once(root, colours, monkeypatch):
    first = suites.load_images(str(root / "toy.toml"), root)
    monkeypatch.setattr(Colours, "images", lambda *_: pytest.fail("encoded again"))
    monkeypatch.setattr(Colours, "texts", lambda *_: pytest.fail("mined again"))
    (root / "images" / "grey" / "0.png").unlink()  # the torn one would be tried again
    second = suites.load_images(str(root / "toy.toml"), root)
    assert second.fingerprint == first.fingerprint
    assert second.labels.fingerprint == first.labels.fingerprint


def test_classes_that_have_a_folder_make_the_known_names(root, colours):
    table = root / "folders.toml"
    table.write_text(
        f'extends = "{root}/toy.toml"\nabout = "two of three"\n[known]\nlists = []\nfolders = ["variant"]\n'
    )
    for key, colour in (("n00000003", "blue"), ("n00000001", "red"), ("n99999999", "white")):
        paint(root, f"../variant/{key}/0.png", colour)
    suite = suites.load_images(str(table), root)
    assert suite.labels.names == ("red", "blue")
    assert sorted(suite.pool.label[suite.pool.is_id].tolist()) == [0, 1]


def test_a_real_model_from_a_folder_reads_the_same_tree(root, tmp_path):
    model = save_clip(tmp_path / "model")
    suite = suites.load_images(str(root / "toy.toml"), root, encoder=str(model))
    assert suite.pool.z.shape == (41, 8)
    assert suite.source.encoder == str(model)
    assert loading.reload(suite.source).fingerprint == suite.fingerprint


def test_missing_files_are_named(root, colours):
    with pytest.raises(SettingError, match="reads feature files; use --features"):
        suites.load_images("imagenet200", root)
    (root / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"expected the class names at .*n01440764 tench"):
        suites.load_images(str(root / "toy.toml"), root)
    (root / "classes.txt").write_text("red\n")
    (root / "benchmark_imglist" / "toy" / "test_toy.txt").unlink()
    with pytest.raises(DataError, match=r"expected the set 'known' under .*test_toy\.txt"):
        suites.load_images(str(root / "toy.toml"), root)


def test_the_names_of_imagenet_come_with_the_package_and_a_file_in_the_data_root_replaces_them(tmp_path):
    found = read_classes("imagenet_classes.txt", tmp_path)
    assert (len(set(found.names)), len(set(found.keys))) == (1000, 1000)
    assert (found.names[0], found.keys[0]) == ("tench", "n01440764")
    assert list(found.keys) == sorted(found.keys)
    (tmp_path / "imagenet_classes.txt").write_text("n01440764 my tench\n")
    assert read_classes("imagenet_classes.txt", tmp_path).names == ("my tench",)


@pytest.mark.parametrize("name", [name for name in suites.names() if suites.needs_images(name)])
def test_every_suite_of_the_paper_can_report_on_an_empty_disk(name, tmp_path):
    found = suites.inventory(name, tmp_path)
    assert [one.images for one in found] == [0] * len(found)
    table = suites.read(name)
    sets = {*table["unknown"], "average", "near", "far"}
    assert all(set(figures) <= sets for figures in table["paper"].values())
    for figures in table["paper"].values():
        assert all(len(pair) in (2, 4) for pair in figures.values())  # with deviations over seeds or without


def test_stored_features_have_no_views(tmp_path):
    suite = suites.load(str(suite_files.write(tmp_path)), tmp_path)
    with pytest.raises(SettingError, match="expected a suite over images for a detector of views, got 'toy'"):
        suite.with_parts("views", suite.labels)
