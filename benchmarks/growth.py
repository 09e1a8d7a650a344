"""Measure the verdicts on growth along depth and the coverage of the slopes' 95 % intervals, on simulated curves.

A curve of verdicts has a point at each half-block; one site takes the even points and one the odd points. Its errors
are an AR(1) process. The kinds of curves:

- `exponential` and `power law`: the law with errors. The other verdict is wrong.
- `jump`: an exponential whose first point at each site is too low. The verdict `power law` is wrong, and either other
  one is acceptable.
- `start`: growth that is fast in the first blocks and exponential afterwards. Every decision is wrong. But in a model
  of few blocks a power law describes this curve, so the largest share of wrong verdicts leaves this kind out.
- `walk`: the mean norm of points that take equal steps in random directions, or their mean variance. The verdict
  `exponential` is wrong, since both follow a power law.
- `random`: ln y is a random walk. Without a drift every decision is wrong. With a drift the expected growth is
  exponential, and the verdict `power law` is wrong.

The script prints the cells as a table. The last line is one JSON object with, for each cell, the share of wrong
verdicts, and the share of right ones among the first draws (−1 for kinds without a right verdict); and, for each cell
of intervals, the share of draws whose interval contains the true slope.

Usage: python benchmarks/growth.py --help
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from numpy.typing import NDArray

from theodolite.groups.travel.record import AIC_MARGIN
from theodolite_jobs.groups.travel.formulas_growth import akaike, slope_interval
from theodolite_jobs.groups.travel.formulas_verdict import comparison, verdict

Floats = NDArray[np.float64]

BLOCKS = (12, 30, 64)
ERRORS = ((0.0, 0.05), (0.0, 0.3), (0.5, 0.3), (0.85, 0.05), (0.85, 0.3))
"""Autocorrelation at a distance of one block, and standard deviation, of the errors of ln y."""

INTERVAL_BLOCKS, INTERVAL_RHO, INTERVAL_SD = (12, 30, 64), (0.0, 0.5, 0.8), 0.2
SLOPES = {"log_linear": 0.1, "power_law": 2.0}

_RIGHT_DRAWS = 4  # draws of each cell for the share of right verdicts, which takes longer than that of wrong ones
_PROMPTS, _WIDTH = 16, 64


@dataclass(frozen=True)
class Kind:
    """A kind of curve: its name and parameter, its right verdict (`""` for none), and those that are wrong."""

    name: str
    parameter: str
    draw: Callable[[np.random.Generator, Floats], Floats]
    right: str
    wrong: tuple[str, ...]


def main() -> None:
    options = measuring.read_options(
        "Measure the verdicts on growth and the coverage of slopes; print tables and JSON.",
        draws=(100, "draws of each kind of curve"),
        interval_draws=(300, "draws of each cell of intervals"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    verdicts, intervals = [], []
    for n, kind in product(BLOCKS, kinds()):
        one = verdict_cell(rng, options.draws, n, kind)
        verdicts.append(one)
        shares = f"wrong {one['wrong']:.3f}   right {one['right']:.2f}"
        measuring.say(f"{kind.name:>12}  {kind.parameter:<46}  blocks {n:>2}   {shares}")
    for law, n, rho in product(SLOPES, INTERVAL_BLOCKS, INTERVAL_RHO):
        one = interval_cell(rng, options.interval_draws, law, n, rho)
        intervals.append(one)
        measuring.say(f"{law:>12}  blocks {n:>2}  autocorrelation {rho:.1f}   covered {one['covered']:.3f}")
    covered = [one["covered"] for one in intervals]
    names = dict.fromkeys(one["kind"] for one in verdicts)
    result = {
        "draws": options.draws,
        "interval_draws": options.interval_draws,
        "margin": AIC_MARGIN,
        "wrong_most": max(one["wrong"] for one in verdicts if one["kind"] != "start"),
        "wrong_mean": {kind: mean_of(verdicts, kind, "wrong") for kind in names},
        "right_mean": {kind: mean_of(verdicts, kind, "right") for kind in names if kind not in ("jump", "start")},
        "covered_least": min(covered),
        "covered_most": max(covered),
        "verdicts": verdicts,
        "intervals": intervals,
    }
    measuring.publish(result, options.out)


def mean_of(cells: list[dict[str, Any]], kind: str, share: str) -> float:
    """Return the mean of a share over the cells of one kind of curve that have it."""
    return float(np.mean([one[share] for one in cells if one["kind"] == kind and one[share] >= 0]))


def kinds() -> Iterator[Kind]:
    """Yield all kinds of curves."""
    for rho, sd in ERRORS:
        noise = f"autocorrelation {rho}, sd {sd}"
        for growth in (3.0, 10.0):
            curve = with_errors(lambda t, growth=growth: growth * t / t[-1], rho, sd)
            yield Kind("exponential", f"growth {growth:g}, {noise}", curve, "exponential", ("power law",))
        for exponent, distance in product((0.5, 2.0, 3.5), (1.0, 0.5)):
            curve = with_errors(power_law(exponent, distance), rho, sd)
            origin = "near" if distance == 1 else "far"
            yield Kind("power law", f"exponent {exponent:g}, {origin}, {noise}", curve, "power law", ("exponential",))
    for rho, sd in (ERRORS[0], ERRORS[-1]):  # most of these curves need fits without each point, which take long
        noise = f"autocorrelation {rho}, sd {sd}"
        curve = with_errors(lambda t: 3 * t / t[-1] - 3 * (t < 1), rho, sd)
        yield Kind("jump", noise, curve, "", ("power law",))
        curve = with_errors(lambda t: 0.27 * t - 5 * np.exp(-t / 2), rho, sd)
        yield Kind("start", noise, curve, "", ("exponential", "power law"))
    for start in (0.5, 4.0):
        yield Kind(
            "walk",
            f"norm, start {start:g}",
            lambda rng, t, s=start: walk_norm(rng, t, s),
            "power law",
            ("exponential",),
        )
    yield Kind("walk", "variance", walk_variance, "power law", ("exponential",))
    for sd in (0.05, 0.3):
        yield Kind("random", f"sd {sd}", random_walk(0.0, sd), "", ("exponential", "power law"))
        yield Kind("random", f"sd {sd}, drift 0.1", random_walk(0.1, sd), "exponential", ("power law",))


def verdict_cell(rng: np.random.Generator, n_draws: int, n: int, kind: Kind) -> dict[str, Any]:
    """Return the shares of wrong and of right verdicts on curves of n blocks."""
    t = np.arange(2 * n) / 2
    curves = np.stack([kind.draw(rng, t) for _ in range(n_draws)])
    # A law that does not lead with all points is not the verdict, so most draws need no fits without a point.
    leading = [leads(t, curves, law) for law in kind.wrong]
    wrong = sum(verdict_of(t, curves[draw]) in kind.wrong for draw in np.flatnonzero(np.logical_or.reduce(leading)))
    right = [verdict_of(t, curve) == kind.right for curve in curves[:_RIGHT_DRAWS]] if kind.right else [-1]
    return {
        "kind": kind.name,
        "parameter": kind.parameter,
        "blocks": n,
        "wrong": wrong / n_draws,
        "right": float(np.mean(right)),
    }


def leads(t: Floats, curves: Floats, law: str) -> NDArray[np.bool_]:
    """Return for which curves the law has the smaller AIC by the margin, at both sites and with all points."""
    sign = 1 if law == "exponential" else -1
    leading = np.ones(len(curves), dtype=bool)
    for site in (0, 1):
        y = curves[:, site::2]
        usable = np.isfinite(y).all(axis=0)  # the variance of equal points is 0
        y, depths = y[:, usable], np.broadcast_to(t[site::2][usable], (len(y), usable.sum()))
        leading &= sign * (akaike("power_law", depths, y) - akaike("log_linear", depths, y)) >= AIC_MARGIN
    return leading


def verdict_of(t: Floats, curve: Floats) -> str:
    """Return the verdict on one curve of ln y at half-blocks."""
    return verdict([comparison(t[site::2], np.exp(curve[site::2])) for site in (0, 1)])


def interval_cell(rng: np.random.Generator, n_draws: int, law: str, n: int, rho: float) -> dict[str, Any]:
    """Return the share of draws whose interval contains the true slope; the origin of the power law is at −1."""
    t = np.arange(n, dtype=np.float64)
    x = t if law == "log_linear" else np.log(t + 1)
    intervals = [slope_interval(law, t, SLOPES[law] * x + errors(rng, n, rho, INTERVAL_SD)) for _ in range(n_draws)]
    covered = [low <= SLOPES[law] <= high for low, high in intervals]
    return {"law": law, "blocks": n, "rho": rho, "covered": float(np.mean(covered))}


def with_errors(curve: Callable[[Floats], Floats], rho: float, sd: float) -> Callable[..., Floats]:
    """Return a draw of a curve at half-blocks; errors one block apart have correlation rho."""
    return lambda rng, t: curve(t) + errors(rng, len(t), np.sqrt(rho), sd)


def power_law(exponent: float, distance: float) -> Callable[[Floats], Floats]:
    """Return ln y of a power law; a distance below 1 is in parts of the model, and one from 1 on in blocks."""
    return lambda t: exponent * np.log(t + (distance if distance >= 1 else distance * t[-1]))


def errors(rng: np.random.Generator, n: int, rho: float, sd: float) -> Floats:
    """Return a stationary AR(1) process."""
    values = rng.normal(size=n)
    for index in range(1, n):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return sd * values


def steps(rng: np.random.Generator, t: Floats) -> Floats:
    """Return the sums of steps in random directions up to each depth, (depth, prompt, d_model); 1 long in a block."""
    directions = rng.normal(size=(len(t), _PROMPTS, _WIDTH))
    directions *= np.sqrt(0.5) / np.linalg.norm(directions, axis=-1, keepdims=True)
    directions[0] = 0
    return np.cumsum(directions, axis=0)


def walk_norm(rng: np.random.Generator, t: Floats, start: float) -> Floats:
    """Return ln of the mean norm of walks that start at a norm of `start`."""
    beginning = np.zeros(_WIDTH)
    beginning[0] = start
    return np.log(np.linalg.norm(beginning + steps(rng, t), axis=-1).mean(axis=-1))


def walk_variance(rng: np.random.Generator, t: Floats) -> Floats:
    """Return ln of the mean variance of walks from one point; −∞ at the first depth."""
    variances = steps(rng, t).var(axis=1, ddof=1).mean(axis=-1)
    return np.log(variances, where=variances > 0, out=np.full(len(t), -np.inf))


def random_walk(drift: float, sd: float) -> Callable[..., Floats]:
    """Return a draw of a random walk at half-blocks, with this drift and standard deviation in a block."""
    return lambda rng, t: np.cumsum(drift / 2 + sd * np.sqrt(0.5) * rng.normal(size=len(t)))


if __name__ == "__main__":
    main()
