"""Where a model runs and in which precision, when the user does not say."""

import torch

from unseen.errors import SettingError


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
