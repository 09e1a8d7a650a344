"""Descriptions of interventions at the last token: where a state is changed, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from theodolite.errors import SiteNotFoundError
from theodolite.sites import Site
from theodolite_jobs.models.loaded import LoadedModel

# The order in which a block computes its sites.
_ORDER = (
    Site.RESID_PRE,
    Site.HEAD_OUT,
    Site.ATTN_OUT,
    Site.RESID_MID_SUM,
    Site.RESID_MID,
    Site.MLP_OUT,
    Site.RESID_POST,
)


@dataclass(frozen=True)
class Location:
    """A site of a block; with `head`, the output of one attention head (site `head_out` only)."""

    site: Site
    layer: int
    head: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """The rank of the location in the order of computation: (layer, step in the block)."""
        return self.layer, _ORDER.index(self.site)


@dataclass(frozen=True, eq=False)
class Patch:
    """Replace the state by `values`: (prompt, feature), or (feature,) for all prompts."""

    values: torch.Tensor

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """Return the changed state, (prompt, feature)."""
        return self.values.to(state).expand_as(state)


@dataclass(frozen=True, eq=False)
class Remove:
    """Project a direction out of the state's difference from a centre; without a centre, out of the state.

    `direction` is (feature,), of any length; 0 has no direction to remove. `centre` is (feature,). With `along`,
    (feature,) of any length, the state moves as far along this direction instead.
    """

    direction: torch.Tensor
    centre: torch.Tensor | None = None
    along: torch.Tensor | None = None

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """Return the changed state, (prompt, feature)."""
        wide = _wide(state)
        offset = wide if self.centre is None else wide - self.centre.to(wide)
        unit = _unit(self.direction, wide)
        along = unit if self.along is None else _unit(self.along, wide)
        return torch.sub(wide, (offset @ unit)[:, None] * along).to(state)


@dataclass(frozen=True, eq=False)
class Add:
    """Add `dose` times `step` to the state; `step` is (feature,), or (prompt, feature)."""

    step: torch.Tensor
    dose: float = 1.0

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """Return the changed state, (prompt, feature)."""
        wide = _wide(state)
        return (wide + self.dose * self.step.to(wide)).to(state)


Change = Patch | Remove | Add


@dataclass(frozen=True, eq=False)
class Variant:
    """Changes of the last token's state in one forward, by location."""

    changes: Mapping[Location, Change]

    @property
    def first(self) -> Location:
        """The location that a forward reaches first."""
        return min(self.changes, key=lambda location: location.order)


def check_locations(model: LoadedModel, locations: Sequence[Location]) -> None:
    """Raise SiteNotFoundError for a location that the model does not have, or whose state no hook can replace."""
    anatomy, sizes = model.anatomy, model.dimensions
    for location in locations:
        site, layer, head = location.site, location.layer, location.head
        if site not in anatomy.taps:
            reason = anatomy.absent.get(site, "it is not a site of a block")
            raise SiteNotFoundError(f"effects: no {site!s}: {reason}; use one of {', '.join(anatomy.sites)}")
        if site is Site.RESID_MID and anatomy.taps[site].side == "input" and Site.ATTN_OUT not in anatomy.taps:
            raise SiteNotFoundError(
                f"effects: no change of {site!s}, because {Site.ATTN_OUT!s} is not known for this model; "
                f"use {Site.RESID_PRE!s}"
            )
        if not 0 <= layer < sizes.n_layers:
            raise SiteNotFoundError(f"effects: no layer {layer}; this model has 0 to {sizes.n_layers - 1}")
        if head is not None and site is not Site.HEAD_OUT:
            raise SiteNotFoundError(f"effects: {site!s} has no heads; use {Site.HEAD_OUT!s}")
        if head is not None and not 0 <= head < sizes.n_heads:
            raise SiteNotFoundError(f"effects: no head {head}; this model has 0 to {sizes.n_heads - 1}")


def _unit(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vector.to(like), dim=0, eps=torch.finfo(like.dtype).tiny)


def _wide(state: torch.Tensor) -> torch.Tensor:
    """Return a state in the precision of the change: float32, or float64 if the model computes in it."""
    return state if state.dtype == torch.float64 else state.float()
