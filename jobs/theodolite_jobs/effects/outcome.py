"""The result of running variants, which both routes fill."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from theodolite_jobs.effects.intact import Intact
from theodolite_jobs.effects.variants import Location, Variant


@dataclass(frozen=True, eq=False)
class Reading:
    """A location to read in every variant: the whole state, or its products with `directions` (direction, feature)."""

    location: Location
    directions: torch.Tensor | None = None

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states (…, feature), or their products with the directions in float64, (…, direction)."""
        return states if self.directions is None else states.double() @ self.directions.to(states.device).double().T


@dataclass(frozen=True, eq=False)
class Outcome:
    """The last token of each prompt under each variant; where a variant changes no bit, these are the intact numbers.

    `final` is `resid_final`, (prompt, variant, d_model); `output` is the output of the base model behind the final
    norm; `readings` are (prompt, variant, …), in the order of the request. `changed` says whether a variant changes a
    bit, (prompt, variant) booleans. `intact_error` is the largest ‖x − y‖ / ‖y‖ of `resid_final` between intact columns
    and the intact forward; 0 if the full route ran.
    """

    final: torch.Tensor
    output: torch.Tensor
    readings: tuple[torch.Tensor, ...]
    changed: torch.Tensor
    intact_error: float = 0.0


class Collector:
    """Collects the states of variants into an Outcome, which begins as the intact one."""

    def __init__(self, intact: Intact, variants: Sequence[Variant], readings: Sequence[Reading]) -> None:
        """Take the intact forward, which has the state at every location of `variants` and `readings`."""
        self.intact, self.variants, self.readings = intact, variants, readings
        changed = [~intact.unchanged_by(variant) for variant in variants]
        none = torch.zeros((len(intact.tokens), 0), dtype=torch.bool, device=intact.final.device)
        self.outcome = Outcome(
            self._repeated(intact.final),
            self._repeated(intact.output),
            tuple(self._repeated(reading.of(intact.states[reading.location])) for reading in readings),
            torch.stack(changed, dim=1) if changed else none,
        )

    @property
    def to_run(self) -> list[int]:
        """The variants that change a state in a prompt."""
        return torch.nonzero(self.outcome.changed.any(dim=0)).flatten().tolist()

    def store(self, target: torch.Tensor, variants: Sequence[int], values: torch.Tensor) -> None:
        """Write values (prompt, one of `variants`, …) to an array of the outcome, except where nothing changed."""
        rows = list(variants)
        changed = self.outcome.changed[:, rows, None].to(target.device)
        target[:, rows] = torch.where(changed, values.to(target), target[:, rows])

    def receiver(self, index: int, variants: Sequence[int], first_column: int = 0) -> Callable[[torch.Tensor], None]:
        """Return what stores a reading of columns (prompt, column, feature); a variant's first is `first_column`.

        Where a location is computed before a variant's first change, the outcome keeps the intact state.
        """
        reading = self.readings[index]
        after = [
            (column, variant)
            for column, variant in enumerate(variants, start=first_column)
            if reading.location.order >= self.variants[variant].first.order
        ]

        def receive(states: torch.Tensor) -> None:
            if after:
                columns, rows = (list(part) for part in zip(*after, strict=True))
                self.store(self.outcome.readings[index], rows, reading.of(states[:, columns]))

        return receive

    def _repeated(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, None].repeat(1, len(self.variants), 1)
