"""A newcomer's first hour, from the wheel in an empty environment to a service: the commands of docs/quickstart.md.

python tests/first_hour.py               # make first-hour; needs the package index, and two minutes
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import venv
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
PAGE = (REPO / "docs" / "quickstart.md").read_text(encoding="utf-8")
PHOTOS = 104  # that `unseen demo --photos` writes
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"]) - {"dev", "fiftyone"}  # make test, make fiftyone install those
LEFT_OUT = {
    "pip install '.[encode,serve]'": "the wheel is installed instead",
    "unseen serve --demo": "takes a free port",
}


class Environment:
    """An empty environment, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "env" / "bin"
        venv.create(folder / "env", with_pip=True)
        (folder / "work").mkdir()
        self.variables = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        self.variables["PATH"] = f"{self.bin}:{os.environ['PATH']}"

    def run(self, command: str, *, code: int = 0) -> str:
        """Run a command as a newcomer types it, say how long it took, and return what it printed."""
        started = time.perf_counter()
        done = subprocess.run(
            command, shell=True, cwd=self.folder / "work", env=self.variables, capture_output=True, text=True
        )
        print(f"{time.perf_counter() - started:6.1f} s  {command[:110]}", flush=True)
        assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def python(self, source: str) -> str:
        """Run a program."""
        (self.folder / "work" / "program.py").write_text(source, encoding="utf-8")
        return self.run("python program.py")


def wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(REPO)], check=True)
    return next(folder.glob("unseen-*.whl"))


def commands() -> list[str]:
    """The commands of the page, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line not in LEFT_OUT]


def ask_service(here: Environment) -> None:
    """Start the demo on a free port and ask for its verdicts."""
    command = ["unseen", "serve", "--demo", "--port", "0", "--data", str(here.folder / "data")]
    log = here.folder / "serve.log"
    with log.open("w") as file, subprocess.Popen(command, env=here.variables, stdout=file, stderr=file) as server:
        try:
            url = wait_for(lambda: re.search(r"http://127.0.0.1:\d+", log.read_text()), log)[0]
            wait_for(lambda: seen(url), log)
            print(f"service at {url}: {seen(url)} images observed")
        finally:
            server.terminate()


def seen(url: str) -> int:
    """How many images the streams of a service have seen, 0 before it answers."""
    try:
        found = [fetched(f"{url}/v1/streams/{stream['id']}") for stream in fetched(f"{url}/v1/streams")["streams"]]
    except OSError:
        return 0
    return sum(stream["counts"]["seen"] for stream in found)


def fetched(url: str) -> Any:
    """What a service answers."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def wait_for(what: Any, log: Path, seconds: float = 60) -> Any:
    """What a function finds, as soon as it finds something."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    return found


def main() -> None:
    """Go through the hour."""
    with tempfile.TemporaryDirectory() as folder:
        here = Environment(Path(folder))
        package = wheel(Path(folder))
        install = f"pip install --quiet --constraint {REPO / 'constraints.txt'}"
        here.run(f"{install} {package}")
        here.run("unseen demo --report demo.html")  # without extras
        assert "encode" in here.run("unseen demo --photos photos/ && unseen detect photos/ --label cat 2>&1", code=2)
        for extra in sorted(EXTRAS):
            here.run(f"{install} --dry-run 'unseen[{extra}] @ {package.as_uri()}'")
        here.run(f"{install} 'unseen[encode,serve] @ {package.as_uri()}'")
        for command in commands():
            printed = here.run(command)
            if command.startswith("unseen detect"):
                assert len(printed.splitlines()) == PHOTOS, printed
        (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
        assert len(here.python(program).splitlines()) == PHOTOS
        ask_service(here)


if __name__ == "__main__":
    main()
