"""Compile kernels.cu with nvcc at first use, and keep the result in a cache folder."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from unseen.errors import SettingError
from unseen.storage.files import cache_dir, replacing

KERNELS = Path(__file__).with_name("kernels.cu")


@functools.cache
def library(capability: tuple[int, int], source: Path = KERNELS) -> ctypes.CDLL:
    """The compiled kernels of `source`, which is or includes KERNELS, from the cache or from nvcc."""
    if capability < (9, 0):
        raise SettingError(
            f"expected a GPU of compute capability 9.0 or more for the CUDA scan, got {capability[0]}.{capability[1]}; "
            "set UNSEEN_SCAN=blocked"
        )
    return ctypes.CDLL(str(build(source, f"sm_{capability[0]}{capability[1]}")))


def build(source: Path, target: str) -> Path:
    """The path of the compiled kernels; two processes that compile at once both get a whole file."""
    digest = hashlib.sha256(KERNELS.read_bytes() + source.read_bytes()).hexdigest()[:16]
    compiled = cache_dir() / f"scan-{digest}-{target}.so"
    if compiled.exists():
        return compiled
    try:
        with replacing(compiled) as temporary:
            compile_kernels(source, temporary, target)
    except OSError as error:  # a home that is read-only, full or not there
        raise SettingError(
            f"expected a folder to keep the compiled scan in, got {compiled.parent} ({error.strerror}); "
            "set UNSEEN_CACHE to one that can be written to"
        ) from error
    return compiled


def compile_kernels(source: Path, target_file: Path, target: str) -> None:
    """Run nvcc; raise with its error output when it fails."""
    options = ["-O3", "-std=c++17", f"-arch={target}", "-shared", "-split-compile=0", "-Xcompiler", "-fPIC"]
    done = subprocess.run([find_nvcc(), *options, "-o", str(target_file), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise SettingError(
            f"expected nvcc to compile the CUDA scan, got exit status {done.returncode}; "
            f"CUDA 12.3 or newer is needed:\n{done.stderr[-2000:]}"
        )


def find_nvcc() -> str:
    """The path of the CUDA compiler."""
    default = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(default) if default.exists() else None)
    if found is None:
        raise SettingError(
            "expected nvcc to compile the CUDA scan once, got none; install the CUDA toolkit or set CUDA_HOME, "
            "or set UNSEEN_SCAN=blocked"
        )
    return found
