"""Sites that only some blocks of a hybrid have, as sentences. Report, page and `theodolite run show` share them."""

from collections.abc import Collection, Iterator

from theodolite.sites import Site
from theodolite.store.runs import RunRecord


def partial_site_notes(record: RunRecord, sites: Collection[Site] = tuple(Site)) -> Iterator[str]:
    """Yield the reason for the missing values of those of these sites that only some blocks have.

    Sites of the same blocks share a sentence.
    """
    same: dict[tuple[tuple[int, ...], str], list[Site]] = {}
    for site, partial in record.partial_sites.items():
        if site in sites:
            same.setdefault((tuple(partial.layers), partial.reason), []).append(site)
    for (layers, reason), own in same.items():
        where, these = ", ".join(map(str, layers)), "these sites" if len(own) > 1 else "this site"
        yield (
            f"{len(layers)} of {record.model.n_layers} blocks have {' and '.join(own)} (layers {where}); activations "
            f"and statistics of {these} are missing in the other blocks, because {reason}"
        )
