"""States that anyone may send, with a checksum that is right: what no stream could go on from is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.streams import space, stream
from unseen.errors import StateError
from unseen.serve.settings import INSIDE, Durability
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.folder import StreamConfig, write_config
from unseen.serve.stream.stream import Stream
from unseen.storage.files import load_tensors, save_tensors

LABELS = space(dtype=torch.float32)
CONFIG = StreamConfig("0" * 16, "", "*", "pooled")
MANY = (1 << 31) - 1


@pytest.fixture
def opened(tmp_path: Path):
    LABELS.save(tmp_path / "space.safetensors")
    write_config(tmp_path, CONFIG)
    made = Stream(tmp_path, CONFIG, Durability())
    made.observe([sample_batch(LABELS, stream(LABELS, 50))])
    yield made
    made.abandon()


def changed(stream: Stream, part: str, value: float | torch.Tensor) -> Path:
    """The state of a stream in a file, one part of it full of a number, or another tensor."""
    path = stream.folder / "changed"
    stream.export(path)
    tensors, header = load_tensors(path, kind="state")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors[part] = value if isinstance(value, torch.Tensor) else torch.full_like(tensors[part], value)
    save_tensors(path, tensors, kind="state", header=header)
    return path


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("threshold.waiting", MANY),  # as many numbers were made: 16 GB
        ("threshold.waiting", -1),
        ("threshold.seen", -1),
        ("detector.seen", -1),
        ("detector.seen", 1 << 62),
        ("detector.pending.size", 257),
        ("detector.pending.samples.known.name", -1),
        ("detector.pending.samples.negative.name", MANY),
        ("detector.sums.sides.gram", float("nan")),
        ("tally.seen", -5),
        ("reservoir.label", MANY),
        ("reservoir.label", torch.zeros(50)),
        ("reservoir.z", torch.zeros(50, 0, dtype=torch.float16)),
        ("reservoir.z", torch.zeros(3, LABELS.dim, dtype=torch.float16)),
        ("reservoir.key_ends", torch.zeros(0, dtype=torch.int64)),
        ("reservoir.numbers", -1),
        ("reservoir.numbers", torch.zeros(3)),
        ("reservoir.journal", torch.zeros(0, dtype=torch.uint8)),
        ("reservoir.journal", torch.tensor(list(b"[{}]"), dtype=torch.uint8)),
        ("reservoir.dismissed", torch.zeros(2)),
    ],
    ids=str,
)
def test_a_state_that_no_stream_can_go_on_from_is_refused(
    opened: Stream, part: str, value: float | torch.Tensor
) -> None:
    with pytest.raises(StateError, match="expected"):
        opened.restore(changed(opened, part, value))
    assert opened.at.entry == 1


def test_a_state_keeps_no_more_images_than_a_stream_may(opened: Stream) -> None:
    opened.restore(changed(opened, "reservoir.numbers", torch.tensor([1 << 40, 0, 1])))
    assert opened.readers.reservoir.unknown == INSIDE.unknown
    assert opened.at.entry == 2
