"""What variants change in the distribution of the next token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.effects.intact import Intact
from theodolite_jobs.effects.outcome import Outcome
from theodolite_jobs.models.config_numbers import logit_scale
from theodolite_jobs.models.threads import threads_for
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.statistics.next_token import group_probability, kl_divergence, log_odds

ROWS = 128
"""The number of distributions that are in memory at once; each has the logits of the whole vocabulary."""

_ROWS_OF_KL = 16
"""The number of divergences that are computed at once, so that what they need stays in the processor's cache."""


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
        scale=logit_scale(config),
        soft_cap=getattr(config, "final_logit_softcapping", None),  # of Gemma-2
    )


@dataclass(frozen=True, eq=False)
class NextTokenChange:
    """What variants change in the distribution of the next token, in float64.

    `kl` is KL(intact ‖ variant) in nats, (prompt, variant). `log_odds` between two groups of tokens are (prompt,
    variant), and those of the intact forward (prompt,). `intact_probability` is that of both groups, (prompt,).
    """

    kl: NDArray[np.float64]
    log_odds: NDArray[np.float64]
    intact_log_odds: NDArray[np.float64]
    intact_probability: NDArray[np.float64]


@torch.inference_mode()
def next_token_change(
    head: LogitHead, intact: Intact, outcome: Outcome, first: Sequence[int], second: Sequence[int], rows: int = ROWS
) -> NextTokenChange:
    """Return what variants change in the distribution of the next token; `first` and `second` are groups of tokens.

    Where a variant changes no state, `kl` is exactly 0, and `log_odds` are exactly those of the intact forward.

    Raises:
        ValueError: a group is empty, or both contain the same token.
    """
    kl = np.zeros(tuple(outcome.changed.shape))
    intact_logits = _logits(head, intact.output)
    intact_odds = log_odds(intact_logits, first, second)
    odds = np.repeat(intact_odds[:, None], kl.shape[1], axis=1)
    for prompt, (before, after) in enumerate(zip(intact.output, outcome.output, strict=True)):
        for part in torch.nonzero(outcome.changed[prompt]).flatten().split(rows):
            # One product for both, as another shape may round otherwise.
            logits = _logits(head, torch.cat([before[None], after[part.to(after.device)]]))
            where = part.cpu().numpy()  # NumPy takes a tensor of one index for a number
            parts = np.split(logits[1:], range(_ROWS_OF_KL, len(where), _ROWS_OF_KL))
            kl[prompt, where] = np.concatenate([kl_divergence(logits[:1], part) for part in parts])
            odds[prompt, where] = log_odds(logits[1:], first, second)
    return NextTokenChange(kl, odds, intact_odds, group_probability(intact_logits, [*first, *second]))


def _logits(head: LogitHead, output: torch.Tensor) -> NDArray[np.float32]:
    """Return the logits (row, token)."""
    with threads_for(len(output)):
        return np.asarray(head.logits(output).float().cpu().numpy())
