"""Make a model compute in float64 throughout, so that no rounding to float32 can hide a mistake.

Families round to float32 in norms, rotary angles and the softmax, whatever the dtype of the model.
"""

from functools import wraps
from typing import Any
from unittest.mock import patch

import torch


def in_float64(module: Any) -> Any:
    """Return a model of float64 whose forward takes every name of float32 for float64."""
    forward = module.forward

    @wraps(forward)
    def run(*args: Any, **options: Any) -> Any:
        with (
            patch.object(torch, "float32", torch.float64),
            patch.object(torch, "float", torch.float64),
            patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            return forward(*args, **options)

    module.forward = run
    return module
