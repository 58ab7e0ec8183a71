"""Compile kernels.cu with nvcc at first use, and keep the result in a cache folder."""

import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from unseen.errors import SettingError
from unseen.storage.files import cache_dir

KERNELS = Path(__file__).with_name("kernels.cu")


@functools.cache
def library(capability: tuple[int, int], source: Path = KERNELS) -> ctypes.CDLL:
    """The compiled kernels of `source`, which is or includes KERNELS, from the cache or from nvcc."""
    if capability < (9, 0):
        raise SettingError(
            f"expected a GPU of compute capability 9.0 or more for the CUDA scan, got {capability[0]}.{capability[1]}; "
            "use scan.using('blocked')"
        )
    target = f"sm_{capability[0]}{capability[1]}"
    digest = hashlib.sha256(KERNELS.read_bytes() + source.read_bytes()).hexdigest()[:16]
    name = f"scan-{digest}-{target}.so"
    for folder in cache_folders():
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    return ctypes.CDLL(str(build(source, name, target)))


def build(source: Path, name: str, target: str) -> Path:
    """Compile into the first folder that can be written to; two processes that do so at once both get a whole file."""
    refused: list[str] = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                compiled = Path(scratch) / name
                compile_kernels(source, compiled, target)
                compiled.replace(folder / name)
            return folder / name
        except OSError as error:  # a home that is read-only, full or not there
            refused.append(f"{folder} ({error.strerror})")
    raise SettingError(
        f"expected a folder to keep the compiled scan in, got {' and '.join(refused)}; "
        "set UNSEEN_CACHE to one that can be written to"
    )


def compile_kernels(source: Path, target_file: Path, target: str) -> None:
    """Run nvcc; raise with its error output when it fails."""
    options = ["-O3", "-std=c++17", f"-arch={target}", "-shared", "-split-compile=0", "-Xcompiler", "-fPIC"]
    done = subprocess.run([find_nvcc(), *options, "-o", str(target_file), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise SettingError(
            f"expected nvcc to compile the CUDA scan, got exit status {done.returncode}; "
            f"CUDA 12.3 or newer is needed:\n{done.stderr[-2000:]}"
        )


def cache_folders() -> list[Path]:
    """Where compiled kernels may be kept: the user's cache, or a temporary folder only this user can write."""
    temporary = Path(tempfile.gettempdir()) / f"unseen-{os.getuid()}"
    return [cache_dir(), *([temporary] if is_private(temporary) else [])]


def is_private(folder: Path) -> bool:
    """Whether only this user can have written to a folder, or none exists: its files will be executed."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def find_nvcc() -> str:
    """The path of the CUDA compiler."""
    default = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(default) if default.exists() else None)
    if found is None:
        raise SettingError(
            "expected nvcc to compile the CUDA scan once, got none; install the CUDA toolkit or set CUDA_HOME, "
            "or use scan.using('blocked')"
        )
    return found
