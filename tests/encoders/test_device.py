"""Devices by name: those of this machine, and an error in three parts for the others."""

import pytest
import torch

from unseen.encoders.torch_encoder import gpu_dtype, pick_device
from unseen.errors import SettingError


def test_a_device_that_is_not_here_is_refused() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    for wrong in ("gpu", "cuda:99"):
        with pytest.raises(SettingError, match=rf"expected a device .* got '{wrong}'; "):
            pick_device(wrong)


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_that_only_emulates_bfloat16_gets_float16(
    native: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert gpu_dtype(torch.device("cuda")) == expected
    assert gpu_dtype(torch.device("cpu")) == torch.float32
