"""Every norm layer of a model, and which captured vectors it reads or puts out."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from theodolite.sites import Site, leaving_block
from theodolite.store.runs import Run
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.statistics.norms import Norm, norm_of

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

FINAL = "final"

_IN_ORDER = ("attention", "attention_output", "mlp", "mlp_output")


@dataclass(frozen=True)
class NormLayer:
    """A norm layer, and where in a run its vectors are.

    Attributes:
        which: what it stands before (`attention`, `mlp`, `final`) or after (`attention_output`, `mlp_output`).
        layer: its block; −1 of the final norm.
        norm: its kind and parameters.
        sites: the sites whose sum it reads, or the one that it puts out; none where that was not captured.
        layer_index: which of the captured layers that is.
        reads: whether those are its inputs.
    """

    which: str
    layer: int
    norm: Norm
    sites: tuple[Site, ...] = ()
    layer_index: int = 0
    reads: bool = True

    @property
    def label(self) -> str:
        """How it is called in results."""
        return FINAL if self.which == FINAL else f"{self.layer}.{self.which}"


def norm_layers(run: Run, weights: "Weights") -> list[NormLayer]:
    """Return every norm layer of a model, in the order of the stream; raises ModelError where one cannot be read."""
    sizes, anatomy = weights.dimensions, weights.anatomy
    found = []
    for layer in range(sizes.n_layers):
        for which in _IN_ORDER:
            if which in anatomy.norms:
                norm = norm_of(weights.norm(layer, which), sizes.d_model)
                found.append(NormLayer(which, layer, norm, *_vectors(run, anatomy, which, layer)))
    final = weights.final_norm()
    if final is not None:
        found.append(NormLayer(FINAL, -1, norm_of(final, sizes.d_model), (Site.RESID_FINAL,)))
    return found


def _vectors(run: Run, anatomy: Anatomy, which: str, layer: int) -> tuple[tuple[Site, ...], int, bool]:
    """Return where a norm's inputs were captured, or else its outputs: the sites, which layer, and whether it reads."""
    for sites, of_layer, reads in _candidates(anatomy, which, layer, run.record.model.n_layers):
        if sites == (Site.RESID_FINAL,):
            return sites, 0, reads
        if of_layer in run.record.layers and set(sites) <= set(run.record.spec.capture.sites):
            return sites, run.record.layers.index(of_layer), reads
    return (), 0, True


def _candidates(anatomy: Anatomy, which: str, layer: int, n_layers: int) -> list[tuple[tuple[Site, ...], int, bool]]:
    """Return where a norm's vectors can be, the best first: the sites, their layer, and whether the norm reads them."""
    if which == "attention":
        return [((Site.RESID_PRE,), layer, True)]
    if which == "mlp":  # of parallel blocks both branches read what enters the block
        return [((Site.RESID_MID if Site.RESID_MID in anatomy.taps else Site.RESID_PRE,), layer, True)]
    if not anatomy.post_norm:  # on what a branch adds, whose inputs are not captured
        return [((Site.ATTN_OUT if which == "attention_output" else Site.MLP_OUT,), layer, False)]
    if which == "attention_output":
        return [((Site.RESID_MID_SUM,), layer, True), ((Site.RESID_MID,), layer, False)]
    outputs = [((site,), of_layer, False) for site, of_layer in leaving_block(layer, n_layers)]
    return [((Site.RESID_MID, Site.MLP_OUT), layer, True), *outputs]
