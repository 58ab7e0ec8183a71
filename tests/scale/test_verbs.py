"""The same verbs on a local Ray of two workers: the same results, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers.pictures import encoded, tar_of
from helpers.streams import space, stream
from helpers.tiny_models import pictures, save_clip
from unseen import SessionSpec, keyed
from unseen.cli import app
from unseen.encoders import load_encoder
from unseen.errors import DataError, LabelError, SettingError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.scale import encode as scaled_encode
from unseen.scale import score as scaled_score

# Ray warns of its own use of what it deprecates, and leaves sockets to the collector
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

COUNT = 36  # pictures of each kind of source
BATCH = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_clip(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[str]:
    """Write a folder, a list, a tar and a table, a damaged picture in each but the list, which misses one."""
    import pyarrow
    import pyarrow.parquet

    root = tmp_path_factory.mktemp("sources")
    files = [encoded(image.pixels) for image in pictures(4 * COUNT)]
    folder, listed, packed, tabled = (files[start : start + COUNT] for start in range(0, 4 * COUNT, COUNT))
    (root / "folder").mkdir()
    (root / "files").mkdir()
    for number, data in enumerate([*folder, b"no picture"]):
        (root / "folder" / f"{number:02d}.png").write_bytes(data)
    for number, data in enumerate(listed):
        (root / "files" / f"{number:02d}.png").write_bytes(data)
    lines = [f"files/{number:02d}.png {number % 3}" for number in range(COUNT)]
    (root / "list.txt").write_text("\n".join([*lines, "files/gone.png 1"]))
    (root / "shard.tar").write_bytes(tar_of({f"{i:02d}.png": data for i, data in enumerate([*packed, b""])}))
    cells = [{"bytes": data, "path": None} for data in [*tabled, b"no picture"]]
    table = pyarrow.table({"image": cells, "label": [number % 5 for number in range(COUNT + 1)]})
    pyarrow.parquet.write_table(table, root / "table.parquet", row_group_size=10)
    return [str(root / name) for name in ("folder", "list.txt", "shard.tar", "table.parquet")]


@pytest.fixture(scope="module")
def local(sources, model, tmp_path_factory):
    """The features of the local path and what it skipped."""
    folder = tmp_path_factory.mktemp("local")
    encoder = load_encoder(model, device="cpu")
    cache = FeatureCache(folder, encoder)
    skipped = [
        row for batch in encode_images(find_images(sources), encoder, cache, size=BATCH) for row in batch.skipped
    ]
    return load_features(folder), skipped


def _kill_one(title: str) -> int:
    """Kill the first worker process of this user whose title says that it runs `title`; return its id."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words.startswith("ray::") and title in words and _descends(int(path.parent.name)):
            os.kill(int(path.parent.name), signal.SIGKILL)
            return int(path.parent.name)
    return 0


@contextmanager
def _struck(title: str) -> Iterator[list[int]]:
    """Kill the first worker that runs `title` while the block works; yields what holds its id in the end."""
    stopped, victims = threading.Event(), list[int]()

    def strike():
        while not stopped.is_set() and not any(victims):
            victims.append(_kill_one(title))
            time.sleep(0.001)

    killer = threading.Thread(target=strike)
    killer.start()
    yield victims
    stopped.set()
    killer.join()


def _descends(process: int) -> bool:
    """Tell whether a process was started by this one: another Ray on the machine is none of ours."""
    while process > 1:
        if process == os.getpid():
            return True
        status = Path(f"/proc/{process}/status").read_text()
        process = int(status.partition("PPid:")[2].split()[0])
    return False


def _same(one, two):
    assert one.keys == two.keys
    assert (one.z * two.z).sum(1).min() > 1 - 1e-6
    assert torch.equal(one.labels, two.labels) if one.labels is not None else two.labels is None


@pytest.mark.equality
def test_every_kind_of_source_is_encoded_although_a_worker_is_killed(ray, model, sources, local, tmp_path):
    expected, skipped = local
    job = scaled_encode.EncodeJob(str(model), "cpu", BATCH, actors=2)
    plan = scaled_encode.plan(ray, sources, tmp_path, job, size=8)
    assert (plan.total, plan.already) == (4 * COUNT + 4, 0)
    with _struck("encode_shard") as victims:
        reports = list(scaled_encode.run(ray, plan, job))
    assert any(victims)
    assert len(reports) > 2
    assert sorted(report.name for report in reports) == [shard.name for shard in plan.shards]
    assert sum(report.encoded for report in reports) == 4 * COUNT
    assert {row for report in reports for row in report.skipped} == set(skipped)
    _same(load_features(tmp_path), expected)
    rows = [row for _, part in read_shards(tmp_path) for row in part]
    assert len({row["key"] for row in rows}) == len(rows) == 4 * COUNT
    seen = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}  # a killed writer's temporary
    assert seen <= {"manifest.json", *(shard.name for shard in plan.shards)}


def _deadly(plan, number):
    """The plan with a picture that kills whoever decodes it, as one too large for the memory does."""
    shards = list(plan.shards)
    first, *rest = shards[number].inputs
    poison = first._replace(entry=replace(first.entry, data=partial(os._exit, 1)))
    shards[number] = replace(shards[number], inputs=(poison, *rest))
    return replace(plan, shards=tuple(shards))


def test_a_shard_that_fails_is_named_and_the_command_resumes(ray, model, sources, local, tmp_path):
    expected, skipped = local
    store = f"local://{tmp_path}"  # a file system of fsspec's, where a cluster would use one of an object store
    where = [source if "list" in source else f"local://{source}" for source in sources]
    job = scaled_encode.EncodeJob(str(model), "cpu", actors=1)
    plan = scaled_encode.plan(ray, where, store, job, size=40)
    blocked = tmp_path / plan.shards[1].name
    blocked.mkdir()  # no file can take the place of a folder
    with pytest.raises(DataError, match=r"got 2 undone \(80 images, .* the same command tries the rest again"):
        list(scaled_encode.run(ray, _deadly(plan, 2), job))
    blocked.rmdir()
    assert len(list(tmp_path.glob("[0-9]*.safetensors"))) == 2
    words = ["encode", *where, "--encoder", str(model), "-o", store, "--ray", "local"]
    result = CliRunner().invoke(app, [*words, "--device", "cpu", "--json"], catch_exceptions=False)
    assert result.exit_code == 1  # some input was skipped
    *rows, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(row["skipped"] for row in rows) == sorted(row.reason for row in skipped)
    damaged = {row.path for row in skipped}
    inputs = [one for shard in plan.shards[1:3] for one in shard.inputs]
    lost = 80 - sum(one.entry.path.removeprefix("local://") in damaged for one in inputs)
    assert last["summary"] == {"encoded": lost, "already": 4 * COUNT - lost, "skipped": 4, "stopped": False}
    found = load_features(store)
    # the same images in the same order: the late ones are in their places, not at the end
    assert [key.removeprefix("local://") for key in found.keys] == list(expected.keys)
    assert (found.z * expected.z).sum(1).min() > 1 - 1e-6
    assert scaled_encode.plan(ray, where, store, job).total == 4  # damaged ones are tried again, as on one machine


def test_misuse_is_refused_before_work_begins(ray, model, sources, tmp_path):
    job = scaled_encode.EncodeJob(str(model), "cpu")
    with pytest.raises(SettingError, match="got a video"):
        scaled_encode.plan(ray, ["film.mp4"], tmp_path, job)
    with pytest.raises(SettingError, match=r"expected a node with a GPU, of which every model gets one"):
        scaled_encode.plan(ray, sources, tmp_path, job._replace(device="cuda"))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def streams():
    """A label space, samples and the stream of each: uneven lengths, interleaved."""
    labels = space(dtype=torch.float32)
    z = stream(labels, 900)
    keys = [f"camera {min(int(x), 11)}" for x in torch.rand(900, generator=torch.Generator().manual_seed(5)) ** 2 * 12]
    return labels, z, keys


def columns(result: keyed.StreamResult) -> list[torch.Tensor]:
    return list(result.verdicts.tensors)


@pytest.mark.equality
@pytest.mark.parametrize("detector", ["default", "online"])
def test_keyed_verdicts_on_ray_are_the_same_bits_as_on_one_machine(ray, streams, detector):
    labels, z, keys = streams
    recipe = keyed.StreamJob(SessionSpec(labels, detector), keep_state=True)
    parts = keyed.split(keys)
    serial = {scan.key: scan for scan in keyed.run_serially(recipe, parts, z, {})}
    for ahead in (1, 4):
        found = list(scaled_score.on_ray(ray, ahead=ahead)(recipe, parts, z, {}))
        assert len(found) == len(serial)
        for scan in found:
            other = serial[scan.key]
            assert all(map(torch.equal, columns(scan), columns(other)))
            assert (scan.summary, _sum(scan.state)) == (other.summary, _sum(other.state))


def _sum(state: bytes) -> str:
    """The checksum in a state file, whose own bytes may hold the same fields in another order."""
    return json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])["__metadata__"]["sha256"]


def test_score_with_ray_prints_the_same_lines_as_without(ray, streams, tmp_path):
    labels, z, keys = streams
    labels.save(tmp_path / "space.safetensors")
    save_file({"features": z}, tmp_path / "z.safetensors", metadata={"camera": json.dumps(keys)})
    words = ["score", str(tmp_path / "z.safetensors"), "--space", str(tmp_path / "space.safetensors")]
    words += ["--json", "--by", "camera"]
    one, two = (CliRunner().invoke(app, [*words, *more], catch_exceptions=False) for more in ([], ["--ray", "local"]))
    assert one.stdout == two.stdout
    assert len(one.stdout.splitlines()) == 900 + 12


def test_an_error_in_a_worker_is_raised_with_its_own_type(ray, streams):
    labels, z, keys = streams
    recipe = keyed.StreamJob(SessionSpec(labels.with_negatives(0), "neglabel"))
    with pytest.raises(LabelError, match="expected a label space with negatives"):
        list(scaled_score.on_ray(ray)(recipe, keyed.split(keys), z, {}))
