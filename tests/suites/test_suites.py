import json

import numpy as np
import pytest
import torch

from helpers import suite_files
from helpers.streams import unit
from unseen.errors import DataError
from unseen_bench import suites


@pytest.fixture
def table(tmp_path):
    return suite_files.write(tmp_path)


def test_a_table_and_its_feature_files_make_a_suite(table):
    suite = suites.load(str(table), table.parent)
    assert (suite.name, suite.sets) == ("toy", ("near", "far"))
    assert (suite.labels.names, suite.labels.negatives) == (tuple(suite_files.NAMES), tuple(suite_files.NEGATIVES))
    assert suite.labels.encoder == "toy"
    assert suite.pool.source.bincount().tolist() == [60, 20, 20]  # of `near`, two classes out of three
    assert suite.pool.label[:60].tolist() == [i % 6 for i in range(60)]
    assert set(suite.pool.label[60:].tolist()) == {-1}


def test_images_of_unlisted_classes_are_left_out(tmp_path):
    table = suite_files.write(tmp_path, table=suite_files.TABLE.replace("lists.json#toy/known", "lists.json#toy/some"))
    (tmp_path / "lists.json").write_text(json.dumps({"toy": {"some": [4, 1], "negative": [6, 7]}}))
    classes = {"classes": json.dumps(list("012345"))}
    suite_files.put(tmp_path, "known", unit(12, 16), torch.arange(12) % 6, metadata=classes)
    suite = suites.load(str(table), tmp_path)
    assert suite.labels.names == ("name 4", "name 1")
    assert suite.against("far").label[:4].tolist() == [1, 0, 1, 0]  # classes 1 and 4, as they are named in the space


def test_duplicate_names_get_a_number(table):
    twice = ["crane", "crane", *suite_files.NAMES[2:], "crane", *suite_files.NEGATIVES[1:]]
    suite_files.put(table.parent, "text", unit(36, 16, seed=1), metadata={"names": json.dumps(twice)})
    labels = suites.load(str(table), table.parent).labels
    assert labels.names[:2] == ("crane", "crane (2)")
    assert labels.negatives[0] == "crane (3)"


def test_an_unknown_suite_is_refused_with_the_ones_there_are(tmp_path):
    with pytest.raises(DataError, match=r"expected a suite out of .*imagenet200.*got 'imagnet'"):
        suites.load("imagnet", tmp_path)


@pytest.mark.parametrize("missing", ["near", "text"])
def test_a_missing_feature_file_is_named(table, missing):
    (table.parent / f"{missing}.safetensors").unlink()
    with pytest.raises(DataError, match=f"got nothing at .*{missing}.safetensors"):
        suites.load(str(table), table.parent)


def test_classes_of_unlabelled_images_cannot_be_chosen(table):
    suite_files.put(table.parent, "near", unit(30, 16))
    with pytest.raises(DataError, match="expected labels in near"):
        suites.load(str(table), table.parent)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "known", "negatives", "samples"),
    [
        ("imagenet200", 200, 742, {"known": 1000, "textures10": 1200, "intel_scenes": 3000, "mnist": 10_000}),
        ("imagenet200-lowres", 200, 742, {"known": 10_000, "flowers102": 1912}),
        ("imagenet1k-surrogate", 1000, 10_499, {"known": 5000}),
        *((f"tin-near-{seed}", 100, 1053, {"known": 5000, "near": 5000}) for seed in range(4)),
    ],
)
def test_the_shared_features_have_the_sizes_of_the_evidence(features, name, known, negatives, samples):
    suite = suites.load(name, features)
    assert (len(suite.labels.names), len(suite.labels.negatives)) == (known, negatives)
    found = dict(zip(suite.pool.sources, suite.pool.source.bincount().tolist(), strict=True))
    assert samples.items() <= found.items()


@pytest.mark.parametrize("seed", range(4))
def test_each_split_of_tiny_imagenet_follows_its_stated_rule(seed):
    table = suites.read(f"tin-near-{seed}")
    order = np.random.default_rng(seed).permutation(200)
    assert table["unknown"]["near"]["classes"] == sorted(order[100:].tolist())
    assert len(set(table["known"]["rows"])) == 100


def test_a_suite_may_take_some_images_of_each_set_and_always_the_same(tmp_path):
    whole = suites.load(str(suite_files.write(tmp_path)), tmp_path)
    table = tmp_path / "toy.toml"
    table.write_text("most = 18\n" + table.read_text())
    thin, again = (suites.load(str(table), tmp_path) for _ in range(2))
    assert thin.pool.source.bincount().tolist() == [18, 18, 18]
    assert thin.fingerprint == again.fingerprint
    rows = {tuple(row) for row in whole.pool.z.tolist()}
    assert all(tuple(row) in rows for row in thin.pool.z.tolist())
    assert thin.pool.label[thin.pool.is_id].unique().tolist() == list(range(6))


def test_a_missing_index_list_is_named(table):
    (table.parent / "lists.json").write_text("{}")
    with pytest.raises(DataError, match=r"index list at lists\.json#toy/known.*KeyError"):
        suites.load(str(table), table.parent)
    (table.parent / "lists.json").unlink()
    with pytest.raises(DataError, match=r"index list at lists\.json#toy/known"):
        suites.load(str(table), table.parent)
