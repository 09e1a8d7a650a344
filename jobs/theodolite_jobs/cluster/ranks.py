"""Tensor-parallel ranks of a replica: processes on one node, with one GPU each, that compute in lock step."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

TIMEOUT = timedelta(minutes=30)
"""Maximum time that a rank waits for another rank, which may still load its weights or write a shard.

The driver notices a dead rank at once. The timeout is for a rank that is alive and does not respond.
"""


@dataclass(frozen=True)
class Rank:
    """One process of a rank group."""

    index: int  # from 0; rank 0 writes the results of the group
    size: int  # number of ranks in the group
    address: str  # host:port on which rank 0 listens for the other ranks


def ranks_of_group(size: int) -> tuple[Rank, ...]:
    """Return the ranks of a group that connects through a free port of this node's loopback interface."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    return tuple(Rank(index, size, address) for index in range(size))


def join(rank: Rank) -> None:
    """Join the process group: NCCL on GPUs, gloo on CPUs. Blocks until all ranks have joined."""
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    os.environ["LOCAL_RANK"] = "0"  # transformers uses the GPU of this number, and each rank sees only its own GPU
    torch.distributed.init_process_group(
        "nccl" if device else "gloo",
        init_method=f"tcp://{rank.address}",
        rank=rank.index,
        world_size=rank.size,
        timeout=TIMEOUT,
        device_id=device,
    )
