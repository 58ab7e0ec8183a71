"""Images per second of the offline encoder against plain transformers float32, in the same run.

    python benchmarks/encode.py                      # two CPU cores
    python benchmarks/encode.py --device cuda --batch 256

Rounds of all candidates alternate, so that a busy machine slows them alike, and ratios are
taken round by round. A candidate whose vectors stray from the reference gets no ratio.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from PIL import Image as Pillow
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unseen.encoders import preprocess
from unseen.encoders.offline import encoder as offline
from unseen.images import Image
from unseen.images.decode import decode
from unseen_bench.run import command
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.timing import alternating_seconds, median_seconds

CLOSE = 0.999
REFERENCE = "transformers float32"


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    files = [jpeg(seed) for seed in range(arguments.batch)]
    pixels = preprocess.CLIP.cropped([Image("", decode(file)) for file in files])
    works = {name: partial(run, pixels) for name, run in candidates(arguments.device).items()}
    vectors = {name: work() for name, work in works.items()}
    seconds = alternating_seconds(works, rounds=arguments.rounds)
    for name, times in seconds.items():
        cosine = float(cosine_similarity(vectors[name], vectors[REFERENCE]).min())
        found = rates(times, seconds[REFERENCE], arguments.batch, cosine)
        yield {"what": name, "device": arguments.device, **found}
    shares = {**preparation_seconds(files), "tower": min(map(min, seconds.values()))}
    total = sum(shares.values())
    rounded = {name: round(value / total, 3) for name, value in shares.items()}
    yield {"what": "share of the time", "device": arguments.device, **rounded}


def rates(times: list[float], reference: list[float], batch: int, cosine: float) -> Row:
    ratio = statistics.median(base / own for base, own in zip(reference, times, strict=True))
    return {
        "batch": batch,
        "images_per_second": round(batch / statistics.median(times), 2),
        "best_images_per_second": round(batch / min(times), 2),
        "ratio": round(ratio, 2) if cosine > CLOSE else None,
        "min_cosine": round(cosine, 6),
    }


def preparation_seconds(files: list[bytes]) -> dict[str, float]:
    """How long one thread takes to decode and resize, which comes before the tower."""
    decoding = median_seconds(lambda: [decode(file) for file in files], repeat=1, warmup=0)
    both = median_seconds(
        lambda: preprocess.CLIP([Image("", decode(file)) for file in files], workers=1), repeat=1, warmup=0
    )
    return {"decode": decoding, "resize": both - decoding}


def candidates(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    plain = offline.build_model(offline.read_weights(offline.TOWER.verified_path()), offline.SIZES).to(device)

    @torch.inference_mode()
    def reference(pixels: Tensor) -> Tensor:
        return plain(pixel_values=preprocess.CLIP.standardised(pixels.to(device))).image_embeds

    ours: dict[str, Callable[[Tensor], Tensor]] = {
        f"unseen {str(dtype).removeprefix('torch.')}": offline.OfflineEncoder(device=device, dtype=dtype).vectors
        for dtype in (torch.float32, torch.bfloat16)
    }
    return {REFERENCE: reference} | ours


def jpeg(seed: int) -> bytes:
    """A photograph-sized JPEG with some structure."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 24, 32, generator=generator)
    picture = torch.nn.functional.interpolate(coarse, size=(375, 500), mode="bicubic").clamp(0, 1)[0]
    buffer = io.BytesIO()
    Pillow.fromarray((picture.permute(1, 2, 0) * 255).byte().numpy()).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
