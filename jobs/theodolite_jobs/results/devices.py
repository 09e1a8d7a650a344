"""The torch device on which a process multiplies float32 matrices of the vocabulary."""

import torch

from theodolite_jobs.models.float32 import turn_off_tf32


def available_device() -> torch.device:
    """Return the GPU if this process sees one, else the CPU, after turning off TF32 in this process.

    Call it in the task, because the driver and the Dask workers may see different devices. With `CUDA_VISIBLE_DEVICES=`
    a process sees no GPU.
    """
    turn_off_tf32()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
