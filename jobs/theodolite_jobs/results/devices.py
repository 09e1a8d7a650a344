"""The torch device on which a process multiplies float32 matrices of the vocabulary."""

import torch


def available_device() -> torch.device:
    """Return the GPU if this process sees one, else the CPU, after turning off TF32 in this process.

    TF32 keeps 10 of the 23 bits of each factor's fraction, so scores would be wrong in the fourth digit and lists of
    tokens in another order. NVIDIA's containers turn it on by an environment variable.

    Call it in the task, because the driver and the Dask workers may see different devices. With `CUDA_VISIBLE_DEVICES=`
    a process sees no GPU.
    """
    torch.set_float32_matmul_precision("highest")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
