"""Every norm layer of a model, and its captured inputs or outputs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from theodolite.sites import Site, leaving_block
from theodolite.store.runs import Run
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.statistics.norms import Norm

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

FINAL = "final"

_IN_ORDER = ("attention", "attention_output", "mlp", "mlp_output")


@dataclass(frozen=True)
class NormLayer:
    """A norm layer, and the captured sites of its inputs or outputs.

    Attributes:
        which: the branch that it precedes (`attention`, `mlp`, `final`) or follows (`attention_output`, `mlp_output`).
        layer: index of its block; −1 for the final norm.
        norm: its kind and parameters.
        sites: the sites whose sum is its input, or the site of its output; empty if neither was captured.
        layer_index: index of the sites' layer among the captured layers.
        reads: whether the sites are its input.
    """

    which: str
    layer: int
    norm: Norm
    sites: tuple[Site, ...] = ()
    layer_index: int = 0
    reads: bool = True

    @property
    def label(self) -> str:
        """Its label in results."""
        return FINAL if self.which == FINAL else f"{self.layer}.{self.which}"


def norm_layers(run: Run, weights: "Weights") -> list[NormLayer]:
    """Return every norm layer of a model in the order of the stream; raise ModelError if one cannot be read."""
    anatomy = weights.anatomy
    norms = []
    for layer in range(weights.dimensions.n_layers):
        for which in _IN_ORDER:
            norm = weights.norm(layer, which) if which in anatomy.norms else None
            if norm is not None:
                norms.append(NormLayer(which, layer, norm, *_vectors(run, anatomy, which, layer)))
    final = weights.final_norm()
    if final is not None:
        captured = Site.RESID_FINAL in run.record.spec.capture.all_sites
        norms.append(NormLayer(FINAL, -1, final, (Site.RESID_FINAL,) if captured else ()))
    return norms


def norm_labels(anatomy: Anatomy, n_layers: int) -> list[str]:
    """Return the labels of the norm layers of a model whose weights are not read."""
    of_blocks = [
        f"{layer}.{which}"
        for layer in range(n_layers)
        for which in _IN_ORDER
        if which in anatomy.norms and anatomy.has_norm(layer, which)
    ]
    return [*of_blocks, FINAL] if anatomy.final_norm else of_blocks


def _vectors(run: Run, anatomy: Anatomy, which: str, layer: int) -> tuple[tuple[Site, ...], int, bool]:
    """Return `sites`, `layer_index` and `reads` of a norm: its captured inputs, or else its outputs."""
    for sites, site_layer, reads in _candidates(anatomy, which, layer, run.record.model.n_layers):
        if not set(sites) <= set(run.record.spec.capture.all_sites):
            continue
        if sites == (Site.RESID_FINAL,):
            return sites, 0, reads
        if site_layer in run.record.layers and all(run.record.has_site(site, site_layer) for site in sites):
            return sites, run.record.layers.index(site_layer), reads
    return (), 0, True


def _candidates(anatomy: Anatomy, which: str, layer: int, n_layers: int) -> list[tuple[tuple[Site, ...], int, bool]]:
    """Return the possible sites of a norm's vectors, the preferred first: sites, layer, whether the norm reads them."""
    if which == "attention":
        return [((Site.RESID_PRE,), layer, True)]
    if which == "mlp":  # in parallel blocks both branches read the block's input
        return [((Site.RESID_MID if Site.RESID_MID in anatomy.taps else Site.RESID_PRE,), layer, True)]
    if not anatomy.post_norm:  # on a branch's output before the sum; its input is not captured
        return [((Site.ATTN_OUT if which == "attention_output" else Site.MLP_OUT,), layer, False)]
    if which == "attention_output":
        return [((Site.RESID_MID_SUM,), layer, True), ((Site.RESID_MID,), layer, False)]
    outputs = [((site,), site_layer, False) for site, site_layer in leaving_block(layer, n_layers)]
    return [((Site.RESID_MID, Site.MLP_OUT), layer, True), *outputs]
