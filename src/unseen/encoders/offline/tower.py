"""CLIP's vision transformer with the same numbers and less work than the textbook form.

Four savings, none of which changes the function: one product for query, key and value; QuickGELU as the fused `silu`,
its factor folded into the weights around it; only the class token in the last block, because nobody reads the others;
and, when asked, bfloat16 products around a float32 residual stream. `merges` is a saving that changes the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm, linear, pad, scaled_dot_product_attention, silu

from unseen.encoders.offline.merging import Tokens

QUICK_GELU = 1.702  # x * sigmoid(1.702 x) == silu(1.702 x) / 1.702
EPSILON = 1e-5
COMPILED_ROWS = 64  # sizes of batches for which a tower is compiled are multiples of it


@dataclass(frozen=True)
class Affine:
    """A matrix and a bias: a projection or, with a vector as matrix, the end of a layer norm."""

    weight: Tensor
    bias: Tensor

    def project(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """`weight @ x + bias` in the weights' own dtype."""
        return linear(x.to(self.weight.dtype), self.weight, self.bias)

    def norm(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """The layer norm of `x`."""
        return layer_norm(x, x.shape[-1:], self.weight, self.bias, EPSILON)


@dataclass(frozen=True)
class Block:
    """One pre-norm transformer block."""

    norm1: Affine
    qkv: Affine
    out: Affine
    norm2: Affine
    fc1: Affine
    fc2: Affine
    heads: int

    def tokens(self, tokens: Tokens, *, merges: int = 0) -> Tokens:
        """All tokens after this block, some of them merged before its second half."""
        query, key, value = self.qkv.project(self.norm1.norm(tokens.x)).chunk(3, dim=-1)
        mixed = tokens._replace(x=tokens.x + self._attend(query, key, value, tokens.log_size))
        return after_merges(mixed, key, self.heads, merges, self._mlp)

    def summary(self, tokens: Tokens) -> Float[Tensor, "n d"]:
        """The class token alone: the others matter only as keys and values."""
        x, normed = tokens.x, self.norm1.norm(tokens.x)
        width = x.shape[-1]
        query = Affine(self.qkv.weight[:width], self.qkv.bias[:width]).project(normed[:, :1])
        key, value = Affine(self.qkv.weight[width:], self.qkv.bias[width:]).project(normed).chunk(2, dim=-1)
        return self._mlp(x[:, :1] + self._attend(query, key, value, tokens.log_size))[:, 0]

    def values(self, x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        """Tokens that attend to themselves only, so that each keeps its place (GL-MCM)."""
        width = x.shape[-1]
        value = Affine(self.qkv.weight[2 * width :], self.qkv.bias[2 * width :]).project(self.norm1.norm(x))
        return self._mlp(x + self.out.project(value))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, log_size: Float[Tensor, "n t"] | None) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        bias = None if log_size is None else log_size[:, None, None].to(query.dtype)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out.project(mixed.transpose(1, 2).flatten(2))

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.fc2.project(silu(self.fc1.project(self.norm2.norm(x)), inplace=True))


def after_merges(tokens: Tokens, key: Tensor, heads: int, merges: int, then: Callable[[Tensor], Tensor]) -> Tokens:
    """`then` of the tokens, of which `merges` pairs with similar keys (mean over heads) are merged first."""
    if merges:
        tokens = tokens.merged(key.unflatten(-1, (heads, -1)).mean(-2), merges)
    return tokens._replace(x=then(tokens.x))


class TokenBlock(Protocol):
    """A transformer block in any arithmetic."""

    def tokens(self, tokens: Tokens, *, merges: int = 0) -> Tokens:
        """All tokens after this block, some of them merged before its second half."""

    def summary(self, tokens: Tokens) -> Float[Tensor, "n d"]:
        """The class token alone."""

    def values(self, x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        """Tokens that attend to themselves only."""


@dataclass(frozen=True)
class VisionTower:
    """CLIP's image side: pixels in, vectors out, neither normalised."""

    patch: Affine
    class_token: Float[Tensor, " d"]
    positions: Float[Tensor, "t d"]
    pre_norm: Affine
    blocks: tuple[TokenBlock, ...]
    post_norm: Affine
    projection: Float[Tensor, "o d"]
    patch_size: int
    merges: int = 0  # tokens that are merged in each block but the last

    @classmethod
    def build(
        cls,
        weights: Mapping[str, Tensor],
        *,
        heads: int,
        dtype: torch.dtype = torch.float32,
        residual: torch.dtype = torch.float32,
        patch: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> VisionTower:
        """The tower for a state dict with transformers' names.

        `dtype` is that of the large products, `residual` that of the stream between blocks and `patch` that of the
        first product, whose pixels feel rounding most.
        """
        weights = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
        depth = sum(name.endswith(".layer_norm1.weight") for name in weights)
        kernel = weights["vision_model.embeddings.patch_embedding.weight"]
        return cls(
            patch=Affine(kernel.flatten(1).to(patch), torch.zeros_like(kernel[:, 0, 0, 0], dtype=patch)),
            class_token=weights["vision_model.embeddings.class_embedding"].to(residual),
            positions=weights["vision_model.embeddings.position_embedding.weight"].to(residual),
            pre_norm=_affine(weights, "vision_model.pre_layrnorm", residual),
            blocks=tuple(
                _block(weights, f"vision_model.encoder.layers.{i}", heads, dtype, residual) for i in range(depth)
            ),
            post_norm=_affine(weights, "vision_model.post_layernorm", residual),
            projection=weights["visual_projection.weight"].to(residual),
            patch_size=kernel.shape[-1],
        )

    @torch.inference_mode()
    def images(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n o"]:
        """One vector per image."""
        return self._images(pixels)

    def compiled(self, mode: str | None = None) -> Callable[[Float[Tensor, "n 3 h w"]], Float[Tensor, "n o"]]:
        """`images` as torch.compile makes it: worth half a minute only for many batches of the same size."""
        quick = torch.compile(self._images, mode=mode, dynamic=False)

        @torch.inference_mode()
        def images(pixels: Tensor) -> Tensor:
            return quick(pixels)

        return images

    def _images(self, pixels: Tensor) -> Tensor:
        return self._project(self.blocks[-1].summary(self._before_last(pixels)))

    @torch.inference_mode()
    def patches(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n p o"]:
        """One vector per patch (GL-MCM)."""
        return self._project(self.blocks[-1].values(self._before_last(pixels).x)[:, 1:])

    def _before_last(self, pixels: Tensor) -> Tokens:
        tokens = Tokens(self._embed(pixels))
        for block in self.blocks[:-1]:
            tokens = block.tokens(tokens, merges=self.merges)
        return tokens

    def _embed(self, pixels: Tensor) -> Tensor:
        # non-overlapping patches: the convolution is one matrix product, kept in float32 because pixels feel rounding
        size = self.patch_size
        n, channels, height, width = pixels.shape
        grid = pixels.reshape(n, channels, height // size, size, width // size, size).permute(0, 2, 4, 1, 3, 5)
        patches = self.patch.project(grid.reshape(n, -1, channels * size * size)).to(self.positions.dtype)
        tokens = torch.cat([self.class_token.expand(n, 1, -1), patches], dim=1)
        return self.pre_norm.norm(tokens + self.positions)

    def _project(self, x: Tensor) -> Tensor:
        return linear(self.post_norm.norm(x), self.projection)


class CompiledTower:
    """The images of a tower as torch.compile makes them; batches are filled up, so that few sizes are compiled."""

    def __init__(self, tower: VisionTower) -> None:
        self._images, self._rows = tower.compiled(), 0

    def __call__(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n o"]:
        """One vector per image."""
        count = len(pixels)
        self._rows = max(self._rows, -(-count // COMPILED_ROWS) * COMPILED_ROWS)
        return self._images(pad(pixels, (0, 0) * 3 + (0, self._rows - count)))[:count]


def _affine(weights: Mapping[str, Tensor], name: str, dtype: torch.dtype = torch.float32, gain: float = 1.0) -> Affine:
    return Affine((weights[f"{name}.weight"] * gain).to(dtype), (weights[f"{name}.bias"] * gain).to(dtype))


def _block(weights: Mapping[str, Tensor], name: str, heads: int, dtype: torch.dtype, residual: torch.dtype) -> Block:
    parts = [_affine(weights, f"{name}.self_attn.{part}_proj", dtype) for part in "qkv"]
    last = _affine(weights, f"{name}.mlp.fc2", dtype)
    return Block(
        norm1=_affine(weights, f"{name}.layer_norm1", residual),
        qkv=Affine(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        out=_affine(weights, f"{name}.self_attn.out_proj", dtype),
        norm2=_affine(weights, f"{name}.layer_norm2", residual),
        fc1=_affine(weights, f"{name}.mlp.fc1", dtype, gain=QUICK_GELU),
        fc2=Affine((weights[f"{name}.mlp.fc2.weight"] / QUICK_GELU).to(dtype), last.bias),
        heads=heads,
    )
