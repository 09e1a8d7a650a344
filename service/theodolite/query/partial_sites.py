"""Sites that only some blocks of a hybrid have, as sentences; the report, the page and `theodolite show` share them."""

from collections.abc import Collection, Iterator

from theodolite.sites import Site
from theodolite.store.runs import RunRecord


def partial_site_notes(record: RunRecord, sites: Collection[Site] = tuple(Site)) -> Iterator[str]:
    """Yield the reason for the missing values of each of these sites that only some blocks have."""
    for site, partial in record.partial_sites.items():
        if site in sites:
            layers = ", ".join(map(str, partial.layers))
            yield (
                f"{len(partial.layers)} of {record.model.n_layers} blocks have {site} (layers {layers}); its "
                f"activations and statistics in other blocks are missing, because {partial.reason}"
            )
