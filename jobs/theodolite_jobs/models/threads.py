"""The number of CPU threads of a matrix product, chosen so that it does not change a bit of the result.

MKL divides a float32 product with a narrow matrix by rows, and rounds differently where a thread gets fewer than about
twelve (seen with 2 to 64 threads); from 16 rows a thread on, the result is that of one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ROWS_OF_A_THREAD = 16

_PRODUCTS = (torch.nn.functional.linear, torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.__matmul__)


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Use at most as many threads inside the context as a product of `rows` rows needs."""
    before = torch.get_num_threads()
    chosen = min(before, max(1, rows // ROWS_OF_A_THREAD))
    if chosen == before:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadsForRows(TorchFunctionMode):
    """Inside this context, each product with a matrix uses the threads for its rows: experts have few tokens each."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if func not in _PRODUCTS or len(args) < 2 or args[1].ndim > 2:
            return func(*args, **(kwargs or {}))
        with threads_for(args[0].numel() // max(1, args[0].shape[-1])):
            return func(*args, **(kwargs or {}))
