from __future__ import annotations

import json

import pytest
import torch
from PIL import Image as Pillow
from safetensors import safe_open

from unseen.encoders import load_encoder
from unseen.encoders.catalogue import resolve_name
from unseen.encoders.device import named_precision
from unseen.encoders.offline import encoder as offline
from unseen.encoders.offline import int8
from unseen.encoders.offline.int8 import Int8Linear
from unseen.encoders.offline.tower import Affine
from unseen.errors import EncoderError, SettingError
from unseen.images import Image

needs_int8 = pytest.mark.skipif(not int8.is_available(), reason="this CPU has no int8 instructions")


def outlier_layer() -> tuple[Affine, torch.Tensor]:
    """A layer, and inputs in which one channel is a hundred times as wide as the others and off centre."""
    generator = torch.Generator().manual_seed(0)
    width = torch.ones(64)
    width[7] = 100
    x = torch.randn(512, 64, generator=generator) * width + 3 * width
    return Affine(torch.randn(32, 64, generator=generator) / 8, torch.randn(32, generator=generator)), x


def relative_error(layer: Affine, x: torch.Tensor) -> float:
    quick = Int8Linear.quantise(layer, x.amin(0), x.amax(0))
    exact = layer.project(x)
    return float((quick.project(quick.encode(x)) - exact).square().mean() / exact.var(0).mean())


@needs_int8
def test_ranges_moved_into_the_weights_halve_the_error_of_a_layer_with_an_outlier_channel(monkeypatch):
    layer, x = outlier_layer()
    moved = relative_error(layer, x)
    monkeypatch.setattr(int8, "MOVED", 0.0)
    assert moved < 0.002
    assert moved < relative_error(layer, x) / 2


@needs_int8
def test_tokens_that_differ_a_hundredfold_have_scales_of_their_own():
    layer, x = outlier_layer()
    x = x.abs() * torch.logspace(-2, 0, len(x)).unsqueeze(1)
    quick = Int8Linear.quantise(layer, torch.zeros(64), x.amax(0), by_token=True)
    small = x[: len(x) // 4]  # where all tokens have one scale, these use few of the 256 values
    error = quick.project_by_token(small) - layer.project(small)
    assert error.norm() < (quick.project(quick.encode(small)) - layer.project(small)).norm() / 4
    beyond = 3 * x[-1:]  # no range cuts it
    assert (quick.project_by_token(beyond) - layer.project(beyond)).norm() < 0.02 * layer.project(beyond).norm()


@needs_int8
def test_the_activation_is_silu():
    layer, x = outlier_layer()
    quick = Int8Linear.quantise(layer, x.amin(0), x.amax(0))
    codes = quick.encode(x)
    expected = torch.nn.functional.silu(quick.project(codes))
    torch.testing.assert_close(quick.project(codes, torch.float32, "swish"), expected, atol=1e-3, rtol=1e-3)


@needs_int8
def test_a_layer_norm_before_a_projection_ends_in_its_bytes():
    layer, x = outlier_layer()
    norm = Affine(torch.linspace(0.1, 5, 64), torch.linspace(-1, 1, 64))
    normed = norm.norm(x)
    quick = Int8Linear.quantise(layer, normed.amin(0), normed.amax(0))
    apart = int8._bytes(quick.after(norm), x).int() - quick.encode(normed).int()
    assert apart.abs().max() <= 1  # rounding


def test_the_shipped_ranges_are_those_of_the_pinned_tower():
    with safe_open(int8.RANGES, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
        shapes = {name.partition(".")[2]: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert about["tower"] == offline.TOWER.sha256
    assert shapes == {"qkv": (2, 768), "out": (2, 768), "fc1": (2, 768), "fc2": (2, 3072)}


def test_precisions_are_chosen_by_name_and_int8_is_the_offline_encoders():
    assert named_precision(None) is None
    assert named_precision("int8") is torch.int8
    with pytest.raises(SettingError, match="float32, bfloat16, int8"):
        named_precision("int4")
    assert resolve_name("offline-b16-int8") == ("offline", "int8")
    with pytest.raises(EncoderError, match="expected the encoder offline for precision int8"):
        load_encoder("ViT-B/16", dtype=torch.int8)


@needs_int8
@pytest.mark.slow
@pytest.mark.data
def test_the_int8_tower_is_near_the_float32_tower_and_has_a_fingerprint_of_its_own():
    if not offline.TOWER.path.is_file():
        pytest.skip("the offline tower is not here; run: unseen models fetch offline")
    exact, quick = (load_encoder("offline", device="cpu", dtype=kind) for kind in (torch.float32, torch.int8))
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = torch.nn.functional.avg_pool2d(pixels.permute(0, 3, 1, 2).float(), 15, 1, 7).byte().permute(0, 2, 3, 1)
    assert torch.cosine_similarity(exact.vectors(pixels), quick.vectors(pixels)).min() > 0.95
    assert quick.fingerprint != exact.fingerprint
    assert load_encoder(quick.name).fingerprint == quick.fingerprint


@pytest.mark.slow
@pytest.mark.data
def test_an_encoder_that_merges_tokens_has_a_name_and_a_fingerprint_of_its_own_and_no_patches():
    if not offline.TOWER.path.is_file():
        pytest.skip("the offline tower is not here; run: unseen models fetch offline")
    plain, merging = (offline.OfflineEncoder(variant, device="cpu") for variant in ("", "merge8"))
    assert (merging.name, load_encoder(merging.name).fingerprint) == ("offline-b16-merge8", merging.fingerprint)
    assert merging.fingerprint != plain.fingerprint
    pictures = [Image("a", Pillow.effect_mandelbrot((224, 224), (-2, -1.5, 1, 1.5), 60).convert("RGB"))]
    assert 0.9 < float((plain.images(pictures) * merging.images(pictures)).sum()) < 0.9999
    with pytest.raises(EncoderError, match="expected an encoder whose patches keep their places"):
        merging.patches(pictures)
