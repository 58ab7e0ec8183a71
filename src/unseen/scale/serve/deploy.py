"""Start the service on a Ray, and stop it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from unseen.scale import cluster
from unseen.scale.serve.directory import Directory
from unseen.scale.serve.gateway import EncoderReplica, Gateway
from unseen.scale.serve.placement import CPU_SHARE, DIRECTORY, Placement
from unseen.scale.serve.transport import RequestMessage
from unseen.serve.http.auth import is_loopback, refuse_open_address
from unseen.serve.run import listening_socket


def deploy(
    ray: Any, placement: Placement, *, port: int, gateways: int = 1, encoders: int = 1, gpus: float = 0
) -> Callable[[], None]:
    """Start the service on a Ray that is joined, ready to answer; return what stops it.

    There are 1 to `encoders` encoder replicas, as many as the images that wait ask for.
    """
    settings = placement.settings
    refuse_open_address(settings)
    cluster.check_gpus(ray, gpus)
    from ray import serve

    directory = placement.actor(ray, DIRECTORY, Directory).remote(placement)
    health = RequestMessage("GET", "/healthz", headers=[(b"host", b"localhost")])
    cluster.fetch_results(ray, directory.answer.remote(health))
    where = "HeadOnly" if is_loopback(settings.host) else "EveryNode"
    serve.start(proxy_location=where, http_options={"host": settings.host, "port": port})
    gateway = serve.deployment(
        Gateway, num_replicas=gateways, max_ongoing_requests=1000, ray_actor_options={"num_cpus": CPU_SHARE}
    )
    encoder = serve.deployment(
        EncoderReplica,
        autoscaling_config={"min_replicas": 1, "max_replicas": encoders, "target_ongoing_requests": 2},
        max_ongoing_requests=4,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
    )
    bound_encoder = (encoder.bind(settings),) if settings.encoder else ()
    serve.run(gateway.bind(placement, *bound_encoder), name=placement.name, route_prefix="/")

    def stop() -> None:
        serve.delete(placement.name)
        ray.get(directory.close.remote())
        ray.kill(directory)

    return stop


def shutdown() -> None:
    """Stop Ray Serve itself, with its proxy: for a Ray of one's own."""
    from ray import serve

    serve.shutdown()


def run(
    address: str,
    placement: Placement,
    *,
    port: int,
    announce: Callable[[str], object],
    wait: Callable[[], object],
    **options: Any,
) -> None:
    """Serve until `wait` returns, then leave every stream with a fresh snapshot."""
    host, data = placement.settings.host, placement.settings.data.resolve()
    placement = placement._replace(settings=replace(placement.settings, data=data), threads=torch.get_num_threads())
    port = port or free_port(host)
    with cluster.connect(address) as ray:
        stop = deploy(ray, placement, port=port, **options)
        announce(f"unseen serves http://{host}:{port} from {data} on Ray")
        try:
            wait()
        finally:
            stop()


def free_port(host: str) -> int:
    """A port that nothing listens on."""
    with listening_socket(host, 0) as listener:
        return int(listener.getsockname()[1])
