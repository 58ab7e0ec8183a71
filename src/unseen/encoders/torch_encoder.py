"""What dual encoders made of torch modules share: batches, device, precision, unit vectors and the fingerprint."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.runtimes import BATCH, TowerRuntimes, check_runtime, export_tower
from unseen.errors import LabelError, SettingError, UnseenError, import_extra
from unseen.images import Image
from unseen.images.inputs import ImageBatch, as_images
from unseen.images.regions import Box
from unseen.storage.files import cache_dir, replacing

TEXT_BATCH = 256  # prompts per forward pass


class Where(TypedDict, total=False):
    """Where and how an encoder works; what is left out suits the machine."""

    device: torch.device | str | None
    dtype: torch.dtype | None  # of the large products
    runtime: str | None  # of the image tower on a CPU


class TorchEncoder(ABC):
    """An image and a text tower in one torch module; a subclass says how to prepare inputs and call the towers."""

    def __init__(self, name: str, model: Any, **where: Unpack[Where]) -> None:
        self.name, self.model = name, model
        dtype, runtime = where.get("dtype"), where.get("runtime")
        self.device = pick_device(where.get("device"), runtime)
        self.dtype = dtype or gpu_dtype(self.device)
        check_runtime(runtime, self.device)
        # texts are many and short: on a CPU that multiplies bfloat16 their products are taken in it, images in float32
        self.text_products = dtype or fast_dtype(self.device)
        self.fingerprint = self._fingerprint()  # before the weights are rounded to another precision
        self.model.to(self.device, self.dtype)
        graph = cache_dir("towers") / f"{self.fingerprint[:32]}.onnx"
        self.runtimes = TowerRuntimes(
            name, self.dtype, self._by_torch, lambda: self._exported(graph), self._size, graph.is_file, runtime
        )

    def _by_torch(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        return self.image_tower(pixels.to(self.device, self.dtype)).float()

    def _exported(self, path: Path) -> Path:
        """The graph of the image tower, exported once for all runs."""
        if not path.is_file():
            with replacing(path) as temporary:
                export_tower(self, temporary, self._size())
        return path

    def _size(self) -> tuple[int, int]:
        """Height and width of what `prepare` makes."""
        blank = Image("", import_extra("PIL.Image", "encode").new("RGB", (64, 64)))
        height, width = self.prepare([blank]).shape[-2:]
        return height, width

    @cached_property
    def dim(self) -> int:
        """The width of the vectors."""
        return self.texts(["a"]).shape[1]

    @property
    @abstractmethod
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """What makes pixels out of images."""

    @property
    def side(self) -> int:
        """Pixels of the side to which `prepare` resizes; 0 if not known."""
        return 0

    @abstractmethod
    def image_tower(self, pixels: Tensor) -> Tensor:
        """One vector per image, of any length."""

    @abstractmethod
    def _tokens(self, prompts: list[str]) -> Any:
        """The tokens of some texts; refuse a text that does not fit the context."""

    @abstractmethod
    def _text_tower(self, tokens: Any) -> Tensor:
        """One vector per text, of any length."""

    @abstractmethod
    def _settings(self) -> str:
        """Everything but the weights that can move a vector."""

    def images(self, batch: ImageBatch) -> Float[Tensor, "n d"]:
        """One unit vector per image; `images.inputs.as_images` says in which forms they may come."""
        images = as_images(batch)
        return self.vectors(self.prepare(images)) if images else self._no_vectors()

    @torch.inference_mode()
    def vectors(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """One unit vector per prepared image."""
        if self.device.type != "cpu":
            return normalize(self._by_torch(pixels), dim=-1)
        return normalize(torch.cat([self.runtimes.tower(part) for part in pixels.float().split(BATCH)]), dim=-1)

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One unit vector per text; a text that does not fit the context is an error and is not truncated."""
        return normalize(self.raw_texts(prompts), dim=-1)

    def raw_texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """The text tower's own vectors, of any length: what CSP averages over its templates."""
        if isinstance(prompts, str):
            raise LabelError(f"expected a list of texts, got one string; pass [{prompts!r}]")
        if not prompts:
            return self._no_vectors()
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # texts of like length need little padding
        batches = [order[start : start + TEXT_BATCH] for start in range(0, len(order), TEXT_BATCH)]
        rows = torch.cat([self._raw_texts([prompts[i] for i in batch]) for batch in batches])
        return rows[torch.tensor(order, device=rows.device).argsort()]

    @torch.inference_mode()
    def _raw_texts(self, prompts: list[str]) -> Float[Tensor, "n d"]:
        tokens = self._tokens(prompts).to(self.device)
        is_mixed = self.text_products != self.dtype
        with torch.autocast(self.device.type, dtype=self.text_products, enabled=is_mixed):
            return self._text_tower(tokens).float()

    def _no_vectors(self) -> Float[Tensor, "0 d"]:
        return torch.empty(0, self.dim, device=self.device)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self._settings().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.float().contiguous().flatten().numpy().tobytes())
        return digest.hexdigest()


def pick_device(device: torch.device | str | None, runtime: str | None = None) -> torch.device:
    """The device asked for, else a GPU where there is one and the runtime works on it."""
    has_gpu = torch.cuda.is_available()
    try:
        found = torch.device(device or ("cuda" if has_gpu and runtime in (None, "torch") else "cpu"))
    except RuntimeError as error:
        raise SettingError(
            f"expected a device such as cpu or cuda:0, got {device!r}; leave it out to choose"
        ) from error
    if found.type == "cuda" and (not has_gpu or (found.index or 0) >= torch.cuda.device_count()):
        raise SettingError(f"expected a device of this machine, got {device!r}; pass cpu, or leave it out to choose")
    return found


def gpu_dtype(device: torch.device) -> torch.dtype:
    """The precision for the large products on a GPU, float32 anywhere else.

    A GPU that only emulates bfloat16 would be slower with it than with float16.
    """
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def fast_dtype(device: torch.device) -> torch.dtype:
    """Bfloat16 also on a CPU that multiplies it at twice the speed of float32."""
    features: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # absent from older releases of torch
    if device.type == "cpu" and features.get("avx512_bf16", False):
        return torch.bfloat16
    return gpu_dtype(device)


def mix_precision(blocks: torch.nn.Module, dtype: torch.dtype) -> None:
    """Take the products of transformer blocks in `dtype`; what is added up between them stays in float32.

    With bfloat16 also between blocks, vectors of CLIP's image tower move five times as far.
    """
    for module in blocks.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(dtype).register_forward_pre_hook(lambda _, inputs: (inputs[0].to(dtype),))


@torch.inference_mode()
def patch_vectors(model: Any, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n p d"]:
    """One unit vector per patch of a CLIP tower: in the last block each token attends to itself alone (GL-MCM)."""
    vision = model.vision_model
    before = vision(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]
    block = vision.encoder.layers[-1]
    x = before + block.self_attn.out_proj(block.self_attn.v_proj(block.layer_norm1(before)))
    values = (x + block.mlp(block.layer_norm2(x)))[:, 1:]
    return normalize(model.visual_projection(vision.post_layernorm(values)).float(), dim=-1)


@torch.inference_mode()
def window_vectors(
    model: Any, pixels: Float[Tensor, "n 3 h w"], inside: Bool[Tensor, "w p"], *, blocks: int = 6
) -> Float[Tensor, "n w d"]:
    """One unit vector per window of an image, of a CLIP tower that sees each image once.

    In the last `blocks` blocks a class token of its own for each window attends to the patches inside and to itself;
    the patches are those of the whole image.
    """
    vision = model.vision_model
    states = vision(pixel_values=pixels, output_hidden_states=True).hidden_states
    blocks = min(blocks, len(vision.encoder.layers))
    tokens = states[-1 - blocks][:, :1].expand(-1, len(inside), -1)
    outside = torch.zeros(inside.shape, device=pixels.device).masked_fill(~inside.to(pixels.device), -torch.inf)
    for block, state in zip(vision.encoder.layers[-blocks:], states[-1 - blocks : -1], strict=True):
        attention, patches, own = block.self_attn, block.layer_norm1(state[:, 1:]), block.layer_norm1(tokens)
        heads = partial(torch.unflatten, dim=-1, sizes=(attention.num_heads, -1))
        q = heads(attention.q_proj(own)) * attention.scale
        k, v, k_own, v_own = (heads(one(x)) for x in (patches, own) for one in (attention.k_proj, attention.v_proj))
        to_patches = torch.einsum("nwhc,nphc->nhwp", q, k).float() + outside
        to_self = torch.einsum("nwhc,nwhc->nhw", q, k_own).float().unsqueeze(-1)
        share = torch.cat([to_patches, to_self], -1).softmax(-1).to(v.dtype)
        mixed = torch.einsum("nhwp,nphc->nwhc", share[..., :-1], v) + share[..., -1:].transpose(1, 2) * v_own
        tokens = tokens + attention.out_proj(mixed.flatten(-2))
        tokens = tokens + block.mlp(block.layer_norm2(tokens))
    return normalize(model.visual_projection(vision.post_layernorm(tokens)).float(), dim=-1)


def patches_inside(boxes: Sequence[Box], side: int) -> Bool[Tensor, "w p"]:
    """Which patches of a square grid have their centre in each box, in shares of width and height."""
    centre = (torch.arange(side) + 0.5) / side
    left, top, right, bottom = torch.tensor(boxes).T.unsqueeze(-1)
    across, down = (centre >= left) & (centre < right), (centre >= top) & (centre < bottom)
    return (down.unsqueeze(2) & across.unsqueeze(1)).flatten(1)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say what kept transformers from loading a class: it imports more when one is asked for, and hides the reason."""
    try:
        yield
    except UnseenError:
        raise
    except ImportError as error:
        reason = error.__cause__ or error
        raise UnseenError(
            f"expected transformers to load its models, got {type(reason).__name__}: {reason}; install builds that fit "
            f"torch {torch.__version__}, and no torchvision unless open-clip needs it (pip uninstall torchvision)"
        ) from error
