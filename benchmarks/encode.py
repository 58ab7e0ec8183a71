"""Images per second of the offline tower against plain transformers float32, in the same run.

    python benchmarks/encode.py                      # two CPU cores
    python benchmarks/encode.py --device cuda --batch 256

One JSON object a line. Rounds of all candidates alternate, so that a busy machine slows them alike, and ratios are
taken round by round. A candidate whose vectors stray from the reference gets no ratio.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable

import torch
from PIL import Image as Pillow
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from unseen.encoders import preprocess
from unseen.encoders.offline import encoder as offline
from unseen.encoders.offline.tower import VisionTower
from unseen.images import Image
from unseen.images.decode import decode

CLOSE = 0.999
REFERENCE = "transformers float32"


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    files = [_jpeg(seed) for seed in range(arguments.batch)]
    pixels = preprocess.CLIP([Image("", decode(file)) for file in files]).to(arguments.device)
    candidates = _candidates(arguments.device)
    vectors = {name: run(pixels) for name, run in candidates.items()}
    seconds = _alternate(candidates, pixels, arguments.rounds)
    for name, times in seconds.items():
        cosine = float(cosine_similarity(vectors[name], vectors[REFERENCE]).min())
        _print(name, times, seconds[REFERENCE], arguments, cosine)
    _print_decoding(files, seconds, arguments)


def _candidates(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    weights = offline.read_weights(offline.TOWER.verified_path())
    config = CLIPVisionConfig(patch_size=16, hidden_act="quick_gelu", projection_dim=512)
    plain = CLIPVisionModelWithProjection(config).eval()
    plain.load_state_dict(weights)
    plain.to(device)

    @torch.inference_mode()
    def reference(pixels: Tensor) -> Tensor:
        return plain(pixel_values=pixels).image_embeds

    towers = {
        f"unseen {str(dtype).removeprefix('torch.')}": VisionTower.build(weights, heads=12, dtype=dtype, device=device)
        for dtype in (torch.float32, torch.bfloat16)
    }
    return {REFERENCE: reference} | {name: _chunked(tower, device) for name, tower in towers.items()}


def _chunked(tower: VisionTower, device: str) -> Callable[[Tensor], Tensor]:
    size = offline.BATCH if device == "cpu" else 4096
    return lambda pixels: torch.cat([tower.images(chunk) for chunk in pixels.split(size)])


def _alternate(
    candidates: dict[str, Callable[[Tensor], Tensor]], pixels: Tensor, rounds: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            seconds[name].append(_seconds(lambda run=run: run(pixels)))  # type: ignore[misc]
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _print(name: str, times: list[float], reference: list[float], arguments: argparse.Namespace, cosine: float) -> None:
    ratio = statistics.median(base / own for base, own in zip(reference, times, strict=True))
    row = {
        "what": name,
        "device": arguments.device,
        "batch": arguments.batch,
        "images_per_second": round(arguments.batch / statistics.median(times), 2),
        "best_images_per_second": round(arguments.batch / min(times), 2),
        "ratio": round(ratio, 2) if cosine > CLOSE else None,
        "min_cosine": round(cosine, 6),
    }
    print(json.dumps(row), flush=True)


def _print_decoding(files: list[bytes], seconds: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    """Say how much of the road from file to vector is spent before the tower, in one thread."""
    decoding = _seconds(lambda: [decode(file) for file in files])
    resizing = _seconds(lambda: preprocess.CLIP([Image("", decode(file)) for file in files], workers=1)) - decoding
    fastest = min(map(min, seconds.values()))
    shares = {"decode": decoding, "resize": resizing, "tower": fastest}
    total = sum(shares.values())
    row = {
        "what": "share of the time",
        "device": arguments.device,
        **{k: round(v / total, 3) for k, v in shares.items()},
    }
    print(json.dumps(row), flush=True)


def _jpeg(seed: int) -> bytes:
    """Return a photograph-sized JPEG with some structure."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 24, 32, generator=generator)
    picture = torch.nn.functional.interpolate(coarse, size=(375, 500), mode="bicubic").clamp(0, 1)[0]
    buffer = io.BytesIO()
    Pillow.fromarray((picture.permute(1, 2, 0) * 255).byte().numpy()).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
