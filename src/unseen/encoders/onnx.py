"""An image tower as one ONNX file with its preprocessing inside: written by `export`, run by ONNX Runtime."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.hub import HubEncoder
from unseen.encoders.preprocess import Preprocess
from unseen.encoders.runtimes import export_tower, onnx_session, onnx_tower
from unseen.encoders.torch_encoder import Where
from unseen.errors import EncoderError, MissingExtra, import_extra
from unseen.images import Image
from unseen.images.inputs import ImageBatch, as_images
from unseen.storage.files import replacing

PREPROCESS, MODEL, FINGERPRINT = "unseen.preprocess", "unseen.model", "unseen.fingerprint"


class OnnxEncoder:
    """The images of a dual encoder; its texts stay with the model it was exported from."""

    def __init__(self, source: str, **where: Unpack[Where]) -> None:
        dtype = where.get("dtype")
        if dtype not in (None, torch.float32):
            raise EncoderError(f"expected float32, the precision of the exported graph, got {dtype}; leave dtype out")
        if (
            where.get("runtime") not in (None, "onnxruntime")
            or torch.device(where.get("device") or "cpu").type != "cpu"
        ):
            raise EncoderError(f"expected the runtime onnxruntime on the CPU for {source}, got {where}; leave them out")
        try:
            session = onnx_session(Path(source))
        except MissingExtra:
            raise
        except Exception as error:  # the runtime's own exceptions have no common base
            raise EncoderError(
                f"expected an ONNX model at {source}, got {error!s:.120}; write one with: unseen models export"
            ) from error
        metadata = session.get_modelmeta().custom_metadata_map
        if PREPROCESS not in metadata:
            raise EncoderError(
                f"expected a file of unseen models export, with its preprocessing inside, got none in {source}; "
                "export the model again"
            )
        self._tower = onnx_tower(session)
        self.preprocess = Preprocess.from_json(metadata[PREPROCESS])
        # the same weights and preprocessing: its vectors can be compared with those of the original
        self.name, self.fingerprint = metadata[MODEL], metadata[FINGERPRINT]
        self.dim: int = session.get_outputs()[0].shape[1]

    def images(self, batch: ImageBatch) -> Float[Tensor, "n d"]:
        """One unit vector per image; `images.inputs.as_images` says in which forms they may come."""
        images = as_images(batch)
        return self.vectors(self.prepare(images)) if images else torch.empty(0, self.dim)

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """What resizes and crops pictures, still in bytes."""
        return self.preprocess.cropped

    @property
    def side(self) -> int:
        """Pixels of the side to which `prepare` resizes."""
        return self.preprocess.resize

    def vectors(self, pixels: UInt8[Tensor, "n h w 3"]) -> Float[Tensor, "n d"]:
        """One unit vector per prepared image."""
        return normalize(self._tower(self.preprocess.standardised(pixels)), dim=-1)

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Refuse: an image tower has no texts."""
        raise EncoderError(
            f"expected an encoder with a text tower, got an image tower only; build the label space with {self.name!r}"
        )


def export(encoder: HubEncoder, path: str | Path) -> Path:
    """Write the image tower of `encoder` as one ONNX file that carries its preprocessing, and return its path."""
    onnx = import_extra("onnx", "export")
    preprocess = Preprocess.from_processor(encoder.processor)
    with replacing(path) as temporary:
        export_tower(encoder, temporary, (preprocess.crop, preprocess.crop))
        graph = onnx.load(temporary)
        values = {PREPROCESS: preprocess.to_json(), MODEL: encoder.name, FINGERPRINT: encoder.fingerprint}
        onnx.helper.set_model_props(graph, values)
        onnx.save(graph, temporary)
    return Path(path)
