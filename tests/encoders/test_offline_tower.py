"""The offline vision tower against that of transformers."""

from dataclasses import replace

import pytest
import torch
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from helpers.tiny_models import VISION, TinyOffline, pictures
from unseen.encoders import load_encoder
from unseen.encoders.offline.merging import Tokens
from unseen.encoders.offline.tower import COMPILED_ROWS, CompiledTower, VisionTower
from unseen.errors import EncoderError


def reference(hidden_act="quick_gelu"):
    torch.manual_seed(0)
    config = CLIPVisionConfig(**VISION, projection_dim=8, hidden_act=hidden_act)
    model = CLIPVisionModelWithProjection(config).eval()
    for parameter in model.parameters():  # fresh weights are too small for an activation to matter
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def embeds(model, pixels):
    with torch.inference_mode():
        return model(pixel_values=pixels).image_embeds


PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_the_tower_computes_the_function_of_transformers():
    model = reference()
    tower = VisionTower.build(model.state_dict(), heads=2)
    torch.testing.assert_close(tower.images(PIXELS), embeds(model, PIXELS), atol=1e-5, rtol=1e-4)


def test_plain_gelu_is_another_function():
    tower = VisionTower.build(reference().state_dict(), heads=2)
    apart = (tower.images(PIXELS) - embeds(reference("gelu"), PIXELS)).abs().max()
    assert apart > 1e-3  # a hundred times the tolerance above


def test_bfloat16_products_stay_close_to_float32():
    model = reference()
    tower = VisionTower.build(model.state_dict(), heads=2, dtype=torch.bfloat16)
    assert torch.cosine_similarity(tower.images(PIXELS), embeds(model, PIXELS)).min() > 0.999
    assert tower.images(PIXELS).dtype == torch.float32


def test_merging_equal_tokens_changes_nothing_because_attention_counts_patches():
    block = VisionTower.build(reference().state_dict(), heads=2).blocks[0]
    few = torch.randn(1, 4, VISION["hidden_size"], generator=torch.Generator().manual_seed(0))
    twins = Tokens(few.repeat_interleave(torch.tensor([1, 2, 2, 2]), dim=1))  # a class token and three pairs
    merged = Tokens(few, torch.tensor([[1.0, 2, 2, 2]]))
    torch.testing.assert_close(block.summary(merged), block.summary(twins))
    torch.testing.assert_close(block.tokens(merged).x, block.tokens(twins).x[:, [0, 1, 3, 5]])


def test_a_tower_that_merges_equal_patches_computes_the_same_function():
    """Without positions, patches of one colour are the same token, and stay so."""
    weights = reference().state_dict()
    weights["vision_model.embeddings.position_embedding.weight"].zero_()
    tower = VisionTower.build(weights, heads=2)
    colour = torch.tensor([0.5, -1.0, 2.0])[None, :, None, None].expand(2, 3, 32, 32)
    merging = replace(tower, merges=1)
    assert merging._before_last(colour).x.shape[1] < tower._before_last(colour).x.shape[1]
    torch.testing.assert_close(merging.images(colour), tower.images(colour), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(merging.images(PIXELS), tower.images(PIXELS), atol=1e-3)


def test_a_compiled_tower_gets_batches_of_few_sizes(monkeypatch):
    tower, sizes = VisionTower.build(reference().state_dict(), heads=2), []
    monkeypatch.setattr(VisionTower, "compiled", lambda self: lambda x: sizes.append(len(x)) or self.images(x))
    compiled = CompiledTower(tower)
    many = torch.randn(COMPILED_ROWS + 1, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    for pixels in (PIXELS, many, PIXELS, many[:COMPILED_ROWS]):
        torch.testing.assert_close(compiled(pixels), tower.images(pixels), atol=1e-5, rtol=1e-4)
    assert sizes == [COMPILED_ROWS, *[2 * COMPILED_ROWS] * 3]


def test_a_compiled_tower_needs_the_offline_encoder_and_a_gpu(tmp_path):
    with pytest.raises(EncoderError, match="expected a GPU for a compiled tower, got cpu; leave --compile out"):
        TinyOffline(device="cpu", compiled=True)
    with pytest.raises(EncoderError, match="expected the encoder offline for a compiled tower, got ViT-B/16"):
        load_encoder("ViT-B/16", compiled=True)
    with pytest.raises(EncoderError, match=r"expected the encoder offline .*, got a model of your own"):
        load_encoder(torch.nn.Identity(), object(), compiled=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
# what torch.compile imports uses what torch itself has deprecated: nothing of ours to change
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_tower_on_a_gpu_has_nearly_the_vectors_of_an_eager_one():
    batch = pictures(5)
    eager, compiled = (TinyOffline(device="cuda", compiled=choice).images(batch) for choice in (False, True))
    assert float((eager * compiled).sum(1).min()) > 0.99
