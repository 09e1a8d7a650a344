"""The parity certificate of a run as sentences, which the report, the page and `theodolite show` share."""

from collections.abc import Iterator, Mapping
from typing import Any


def parity_notes(parity: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about a certificate in half precision: the distances from float32, and the routing to experts."""
    if distances := parity.get("float32_distances"):
        # The site at which the captured vectors are farthest, compared with plain Hugging Face.
        site = max(distances, key=lambda one: distances[one]["captured"][0] - distances[one]["plain"][0])
        captured, plain = ([f"{value:.1e}" for value in distances[site][run]] for run in ("captured", "plain"))
        yield (
            f"At {site}, the distance of captured vectors from a float32 run is {captured[0]} in the median and "
            f"{captured[1]} at the 95 % quantile; that of plain Hugging Face in {parity['dtype']} is {plain[0]} and "
            f"{plain[1]}."
        )
    if parity.get("routing") == "compared":
        yield (
            f"{parity['routing_flips']:,} of {parity['routed']:,} routings of a token to experts differ between the "
            "two, because of rounding."
        )
    elif parity.get("routing") == "unknown":
        yield "It is not known whether the two route tokens to different experts or select different tokens."
