"""Many streams at once on a Ray cluster, one session each: here six cameras, on a Ray of this machine.

python examples/ray_cluster.py            # or: python examples/ray_cluster.py auto, on a cluster
"""

import sys

from unseen import SessionSpec, demo, keyed
from unseen.scale import cluster
from unseen.scale.score import on_ray


def main(address: str = "local") -> None:
    """Judge the images inside the package as streams of six cameras; the verdicts are those of a serial run."""
    pack = demo.load()
    z = pack.shuffled(0).z[:600]
    streams = keyed.split([f"camera {i % 6}" for i in range(len(z))])
    job = keyed.StreamJob(SessionSpec(pack.space))
    with cluster.connect(address, workers=2) as ray:
        results = list(on_ray(ray)(job, streams, z, {}))
    for result in sorted(results, key=lambda one: one.key):
        print(f"{result.key}: {result.summary.known} of {result.summary.samples} known")
    serial = keyed.joined(streams, keyed.run_serially(job, streams, z, {}))
    assert bool((keyed.joined(streams, results).margin == serial.margin).all())


if __name__ == "__main__":
    main(*sys.argv[1:])
