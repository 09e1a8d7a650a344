"""The ranks of a replica in tensor parallel: processes of one GPU each that compute in lock step, on one node."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

TIMEOUT = timedelta(minutes=30)
"""The longest one rank waits for another, which may still read its part of the weights or write a shard.

The driver hears of a dead rank at once; this is for one that is alive and silent.
"""


@dataclass(frozen=True)
class Rank:
    """One process's place in its group.

    Attributes:
        index: from 0; the first one writes what all have computed.
        size: ranks in the group.
        address: host:port, where the first one listens for the others.
    """

    index: int
    size: int
    address: str


def meeting_ranks(size: int) -> tuple[Rank, ...]:
    """Return the ranks of a group that meet at a free port of this node; other nodes need not reach it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    return tuple(Rank(index, size, address) for index in range(size))


def join(rank: Rank) -> None:
    """Meet the other ranks, over NCCL between GPUs and gloo between CPUs; returns once all are there."""
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    os.environ["LOCAL_RANK"] = "0"  # transformers takes the GPU of this number, and each rank sees its own one only
    torch.distributed.init_process_group(
        "nccl" if device else "gloo",
        init_method=f"tcp://{rank.address}",
        rank=rank.index,
        world_size=rank.size,
        timeout=TIMEOUT,
        device_id=device,
    )
