"""Files that are decoded on a GPU; on a CPU Pillow stands in for the decoder and for the kernels."""

import io

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import encoded
from helpers.stand_ins import BROKEN, decode_by_pillow, resize_by_pillow
from unseen.encoders.gpu import jpeg
from unseen.encoders.gpu.jpeg import GpuDecoder, PlainJpeg
from unseen.encoders.preprocess import CLIP
from unseen.errors import EncoderError
from unseen.images import Image

CPU = torch.device("cpu")


def smooth(seed, size=(500, 375)):
    rough = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return encoded(Pillow.fromarray(rough).resize(size, Pillow.Resampling.BICUBIC), "JPEG", quality=95)


def plain(data):
    with Pillow.open(io.BytesIO(data.replace(BROKEN, b""))) as picture:
        return PlainJpeg.of_bytes(data, *picture.size)


def by_pillow(files):
    return CLIP.cropped([Image("", Pillow.open(io.BytesIO(file)).convert("RGB")) for file in files])


def decoder(decode=decode_by_pillow):
    return GpuDecoder(CLIP, CPU, decode, resize_by_pillow(CLIP))


def test_pixels_come_in_order_whatever_is_decoded_at_once(monkeypatch):
    calls = []

    def note(files, device):
        calls.append(len(files))
        return decode_by_pillow(files, device)

    monkeypatch.setattr(jpeg, "TOGETHER", 3 * 60 * 40)
    files = [smooth(seed, (60, 40)) for seed in range(7)]
    decoded = decoder(note)([plain(file) for file in files])
    assert calls == [3, 3, 1]
    assert decoded.places == list(range(7))
    assert torch.equal(decoded.pixels, by_pillow(files))


def test_a_file_that_cannot_be_decoded_fails_no_other():
    files = [smooth(seed, (60, 40)) for seed in range(9)]
    files[2], files[7] = BROKEN + files[2], BROKEN + files[7]
    decoded = decoder()([plain(file) for file in files])
    assert decoded.places == [0, 1, 3, 4, 5, 6, 8]
    assert torch.equal(decoded.pixels, by_pillow([files[place] for place in decoded.places]))


def test_a_picture_of_another_size_than_its_header_says_is_left_out():
    files = [plain(smooth(0, (60, 40))), plain(smooth(1, (60, 40)))._replace(height=41)]
    assert decoder()(files).places == [0]


def test_a_machine_without_a_decoder_is_refused():
    def missing(files, device):
        raise RuntimeError("not compiled with nvJPEG support")

    with pytest.raises(EncoderError, match="expected torchvision with a JPEG decoder for cpu, got not compiled"):
        decoder(missing).check()
    decoder().check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_decodes_as_pillow_but_for_rounding():
    pytest.importorskip("torchvision")
    files = [smooth(seed, size) for seed, size in enumerate([(500, 375), (96, 72), (375, 500), (640, 480), (224, 224)])]
    on_gpu = GpuDecoder(CLIP, torch.device("cuda", 0))
    on_gpu.check()
    decoded = on_gpu([plain(file) for file in files])
    apart = (decoded.pixels.cpu().int() - by_pillow(files).int()).abs().float()
    assert decoded.places == list(range(5))
    assert apart.mean() < 2
    assert apart.max() < 40


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_leaves_out_what_it_cannot_decode():
    pytest.importorskip("torchvision")
    files = [plain(smooth(seed, (96, 72))) for seed in range(5)]
    files[3] = PlainJpeg.of_bytes(b"\xff\xd8\xff no picture \xff\xd9", 96, 72)
    decoded = GpuDecoder(CLIP, torch.device("cuda", 0))(files)
    assert decoded.places == [0, 1, 2, 4]
