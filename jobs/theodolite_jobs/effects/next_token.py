"""Logits of the next token from the output of the base model."""

from dataclasses import dataclass

import torch

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.weights import Weights


@dataclass(frozen=True, eq=False)
class LogitHead:
    """A language-model head: logits are soft_cap · tanh(scale · (x Wᵀ + bias) / soft_cap)."""

    table: torch.Tensor  # (token, feature)
    bias: torch.Tensor | None = None  # (token,)
    scale: float = 1.0
    soft_cap: float | None = None

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Return the logits, (…, token) in the table's dtype, from the base model's output (…, feature).

        A vocabulary is wide: pass a few variants at a time.
        """
        logits = torch.nn.functional.linear(output.to(self.table), self.table, self.bias) * self.scale
        return logits if self.soft_cap is None else self.soft_cap * (logits / self.soft_cap).tanh()


def logit_head(weights: Weights, device: torch.device | str = "cpu") -> LogitHead:
    """Return the head of a model, from its files.

    Raises:
        ModelError: the files have no language-model head.
        UnsupportedModelError: the model is an encoder.
    """
    if not weights.anatomy.causal:
        raise UnsupportedModelError(
            f"{weights.config.model_type!r} is an encoder and predicts no next token; effects on tokens need a decoder"
        )
    config, bias = weights.config, weights.unembedding_bias()
    return LogitHead(
        table=weights.unembedding().to(device),
        bias=None if bias is None else bias.to(device),
        scale=float(getattr(config, "logit_scale", 1.0))
        / float(getattr(config, "logits_scaling", 1.0)),  # Cohere; Granite
        soft_cap=getattr(config, "final_logit_softcapping", None),  # Gemma-2
    )
