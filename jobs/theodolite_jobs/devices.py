"""Find out which kind of device the replicas of a survey have, before any model is loaded."""

from collections.abc import Callable

from theodolite.settings import Settings
from theodolite_jobs.capture.sizes import Device


def device_of(settings: Settings, message: Callable[[str], None]) -> Device:
    """Return the kind of device: as the settings say, or else that of the cluster's nodes, or of this machine.

    `message` is called with a sentence if the nodes are waited for.

    Raises:
        CaptureError: the cluster cannot be reached, or has no nodes for work.
    """
    if settings.gpus_per_replica is not None:
        return "gpu" if settings.gpus_per_replica else "cpu"
    if settings.ray_address:
        from theodolite_jobs.cluster.session import choose_resources, ray_session

        with ray_session(settings.ray_address, message):
            grows = settings.nodes_wait_seconds > 0
            return "gpu" if choose_resources(settings.replicas, None, grows=grows, message=message).gpus else "cpu"
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"
