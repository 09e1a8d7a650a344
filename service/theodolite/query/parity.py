"""The parity certificate and the spot checks as sentences. Report, page and `theodolite run show` share them."""

from collections.abc import Iterator, Mapping
from typing import Any

_USUAL = 1e-5
"""An error in float32 that needs no explanation."""


def parity_notes(parity: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about a certificate: the source of converted weights, and the rounding."""
    if held := parity.get("held_against_source"):
        parts = [f"{len(names)} {kind}" for kind, names in sorted(held.items(), reverse=True) if names]
        yield (
            f"Of the converted model, {' and '.join(parts)} were compared with the files from which it was converted, "
            "read a second way, and are equal."
        )
    largest = parity.get("float32_blocks_max_error") or parity.get("max_error", 0)  # in float32
    if parity.get("float32_rounding") and not parity.get("warning") and largest > _USUAL:
        yield (
            f"Plain transformers in float32 differ from float64 by up to {parity['float32_rounding']:.1e} in the first "
            "blocks, on the probe prompt with the largest error. Captured and plain vectors both round, so an error of "
            "up to three times this distance can be rounding."
        )
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


def spot_check_notes(captured: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a sentence about the spot checks of all sets, if there are any."""
    n_checks = sum(int(facts["spot_checks"]) for facts in captured.values())
    if not n_checks:
        return
    n_rerouted = sum(int(facts["spot_checks_rerouted"]) for facts in captured.values())
    largest = max(facts["spot_check_error"] for facts in captured.values())
    rerouted = f"; in {n_rerouted:,} of them, rounding routed a token to other experts" if n_rerouted else ""
    yield (
        f"While the survey ran, {n_checks:,} more prompts were compared: their largest relative error is {largest:.1e}"
        f"{rerouted}."
    )
