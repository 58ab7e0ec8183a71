"""Processes that read files: the same bytes, what they leave to others, and how they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.pictures import encoded, flat
from unseen.images.jpeg import plain_size
from unseen.images.plain_pool import PlainPool

SCRIPT = """
import os, signal, sys, time
from unseen.images.plain_pool import PlainPool
pool = PlainPool(1)
print(pool.read(sys.argv[1:]).found[0][1:], pool._all[0]._process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def paths(tmp_path):
    """Files of several sizes and kinds, one with a name that is not UTF-8, and one that is not there."""
    for i in range(9):
        picture = flat(size=(40 + i, 30), colour=(i, 20, 30))
        (tmp_path / f"{i}.jpg").write_bytes(encoded(picture, "JPEG", progressive=i == 3))
    (tmp_path / "4.jpg").write_bytes(b"")
    os.rename(tmp_path / "5.jpg", os.fsencode(tmp_path) + b"/5-\xe9.jpg")
    return [*sorted(str(path) for path in tmp_path.iterdir()), str(tmp_path), str(tmp_path / "missing.jpg")]


def parts(files):
    """The bytes of each file."""
    ends = np.cumsum([size for size, _, _ in files.found])
    return [part.tobytes() for part in np.split(files.data, ends[:-1])]


def test_plain_files_have_their_bytes_and_sizes_and_all_others_none(paths):
    with PlainPool(2) as pool:
        files = pool.read(paths)
        assert [bool(size) for size, _, _ in files.found] == [True] * 3 + [False] * 2 + [True] * 4 + [False] * 2
        for path, data, (size, *shape) in zip(paths, parts(files), files.found, strict=True):
            if size:
                expected = Path(path).read_bytes()
                assert data == expected
                assert tuple(shape) == plain_size(expected)
        assert pool.read(paths[4:5]).found == [(0, 0, 0)]


def test_a_process_that_was_killed_leaves_all_files_and_says_so_once(paths, caplog):
    with PlainPool(1) as pool:
        before = pool.read(paths)
        process = pool._all[0]._process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for _ in range(2):
            files = pool.read(paths)
            assert len(files.data) == 0
            assert files.found == [(0, 0, 0)] * len(paths)
        assert parts(before)[0]
    assert len([line for line in caplog.messages if "has ended" in line and "threads read instead" in line]) == 1


def test_processes_start_when_they_are_asked_and_end_with_their_pool(paths):
    with PlainPool(3) as pool:
        pool.read(paths)
        started = [worker._process for worker in pool._all if worker._process]
        assert len(started) == 1
    assert started[0].returncode is not None


def test_a_script_without_a_main_guard_reads_and_its_process_ends_with_it(paths, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.Popen(
        [sys.executable, script, paths[0]], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    try:
        size, pid = run.stdout.readline().rsplit(" ", 1)
        assert size == "(40, 30)"
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
    deadline = time.monotonic() + 20
    while is_running(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid):
    """Whether a process is there and has not ended: nobody may be left to collect it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
