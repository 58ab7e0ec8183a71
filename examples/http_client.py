"""A stream of a service: create it, observe, score, and keep its state. Start one first: unseen serve

python examples/http_client.py http://127.0.0.1:8000
"""

import sys
import tempfile
from pathlib import Path

from unseen import demo
from unseen.serve.client import Client


def main(url: str, key: str | None = None) -> None:
    """Send the features of the images inside the package, and print what the service says of them."""
    pack = demo.load()
    z = pack.shuffled(0).z
    with Client(url, key) as service, tempfile.TemporaryDirectory() as folder:
        pack.space.save(space := Path(folder) / "space.safetensors")
        stream = service.create(space, name="example")  # or service.create(names=["cat", "dog"])
        for start in range(0, 96, 32):
            verdicts = stream.observe(z[start : start + 32])  # retried without learning twice
            print(sum(one["verdict"] == "known" for one in verdicts), "of", len(verdicts), "known")
        print(stream.score(z[96:97])[0])  # learns nothing
        print(stream.state(Path(folder) / "state.safetensors"), "samples in the state")
        stream.delete()


if __name__ == "__main__":
    main(*sys.argv[1:])
