"""Move the streams of instances that are stopped to where nginx sends their requests, after instances came or went.

    python deploy/move_streams.py https://unseen.example.org 127.0.0.1:8001=/srv/unseen-1 127.0.0.1:8002=/srv/unseen-2

nginx runs with the new list of instances and says, in X-Unseen-Instance, which it would ask; the instances are stopped,
which each folder's lock makes sure of. A folder appears whole at its new place before the old one goes: a kill in
between loses nothing, and of two copies nginx knows one.
"""

import shutil
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

from unseen.serve.backup import stream_folders
from unseen.serve.stream.folder import exclusive_lock


def main(url: str, *places: str) -> None:
    """Move every stream that is not where it belongs, and say where it went."""
    data = {address: Path(folder) for address, _, folder in (place.partition("=") for place in places)}
    with ExitStack() as locks:
        for folder in data.values():
            locks.enter_context(closing(exclusive_lock(folder / "lock")))
        for folder in [one for own in data.values() for one in stream_folders(own)]:
            target = data[instance_of(url, folder.name)] / "streams" / folder.name
            if target != folder:
                half = target.with_name(f".new-{folder.name}")
                shutil.rmtree(half, ignore_errors=True)
                shutil.copytree(folder, half)
                half.rename(target)
                shutil.rmtree(folder)
                print(f"{folder} -> {target}")


def instance_of(url: str, stream: str) -> str:
    """The address of the instance that nginx would ask for a stream; the answer itself may be an error."""
    try:
        with urllib.request.urlopen(f"{url}/v1/streams/{stream}") as answer:
            return str(answer.headers["X-Unseen-Instance"])
    except urllib.error.HTTPError as error:
        return str(error.headers["X-Unseen-Instance"])


if __name__ == "__main__":
    main(*sys.argv[1:])
