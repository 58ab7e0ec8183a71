"""Models small enough to build in a test, saved to disk with their processor and tokenizer."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.images import Image

WORDS = ["<pad>", "<start>", "<unk>", "<end>", "a", "photo", "of", "cat", "dog", "the", "nice"]
TEXT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION = {**TEXT, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
CONTEXT = 12


def tokenizer(context: int = CONTEXT, *, letters: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of a few words; with `letters` it spells all others, which are otherwise one and the same token."""
    vocabulary = [*WORDS, *(one for one in string.printable if letters and one not in WORDS)]
    ids = {word: i for i, word in enumerate(vocabulary)}
    spelt = models.WordPiece(ids, unk_token="<unk>", continuing_subword_prefix="")
    words = Tokenizer(spelt if letters else models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", model_max_length=context
    )


def save_clip(
    folder: Path, *, seed: int = 0, hidden_act: str = "quick_gelu", context: int = CONTEXT, letters: bool = False
) -> Path:
    torch.manual_seed(seed)
    texts = tokenizer(context, letters=letters)
    ids = {"vocab_size": len(texts), "max_position_embeddings": context, "eos_token_id": 3, "pad_token_id": 0}
    config = CLIPConfig(
        text_config={**TEXT, **ids, "hidden_act": hidden_act, "projection_dim": 8},
        vision_config={**VISION, "hidden_act": hidden_act, "projection_dim": 8},
        projection_dim=8,
    )
    model = CLIPModel(config)
    for parameter in model.parameters():  # fresh weights are too small for an activation to matter
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPImageProcessorPil(**size).save_pretrained(folder)
    texts.save_pretrained(folder)
    return folder


def save_siglip(folder: Path) -> Path:
    torch.manual_seed(0)
    ids = {"vocab_size": len(WORDS), "max_position_embeddings": CONTEXT, "eos_token_id": 3, "pad_token_id": 0}
    model = SiglipModel(SiglipConfig(text_config={**TEXT, **ids}, vision_config=VISION))
    model.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def pictures(count: int, *, seed: int = 0, size: tuple[int, int] = (50, 40)) -> list[Image]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, size[1], size[0], 3), generator=generator, dtype=torch.uint8).numpy()
    return [Image(f"{i}.png", Pillow.fromarray(array)) for i, array in enumerate(pixels)]


class TinyOffline(OfflineEncoder):
    """The offline encoder with a small image tower of random weights."""

    def __init__(self, **where):
        super().__init__(**{"runtime": "torch", **where})

    def _check_fetched(self):
        pass

    def _float_model(self):
        torch.manual_seed(0)
        sizes = {**VISION, "hidden_size": 24, "num_attention_heads": 12, "image_size": 224, "patch_size": 32}
        config = CLIPVisionConfig(**sizes, projection_dim=512, hidden_act="quick_gelu")
        model = CLIPVisionModelWithProjection(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return model


class ColourEncoder:
    """The mean colour of an image as a unit vector: an encoder that needs no model."""

    name, dim = "colour", 3

    def __init__(self, fingerprint: str = "c010" * 16) -> None:
        self.fingerprint = fingerprint
        self.calls = 0

    def images(self, batch):
        self.calls += len(batch)
        means = [torch.tensor(image.pixels.resize((1, 1)).getpixel((0, 0))).float() + 1 for image in batch]
        return torch.nn.functional.normalize(torch.stack(means), dim=-1) if means else torch.empty(0, 3)

    def texts(self, prompts):
        return torch.eye(3)[: len(prompts)]


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


class NamedColours(ColourEncoder):
    """Colours by name: texts that name one lie on it, all others between."""

    def texts(self, prompts: Sequence[str]) -> torch.Tensor:
        rows = []
        for prompt in prompts:
            colour: Any = next(
                (value for name, value in COLOURS.items() if prompt.rstrip(".").split()[-1] == name), None
            )
            if colour is None:
                generator = torch.Generator().manual_seed(sum(map(ord, prompt)))
                colour = (torch.rand(3, generator=generator) * 255).tolist()
            rows.append(torch.tensor(colour) + 1.0)
        return torch.nn.functional.normalize(torch.stack(rows), dim=-1)
