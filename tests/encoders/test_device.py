"""Devices by name: those of this machine, and an error in three parts for the others."""

import pytest
import torch

from unseen.encoders.device import pick_device
from unseen.errors import SettingError


def test_a_device_that_is_not_here_is_refused() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    for wrong in ("gpu", "cuda:99"):
        with pytest.raises(SettingError, match=rf"expected a device .* got '{wrong}'; "):
            pick_device(wrong)
