"""Read-only tools for agents over the Model Context Protocol; each calls the reader of a store or of a service.

Every answer has the badges of the overview: what limits its numbers, with ⚠ before those that a quotation needs.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from inspect import getdoc
from textwrap import shorten
from typing import Annotated, Any

import numpy as np
import pandas as pd
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from theodolite.client import Client
from theodolite.errors import ResultsNotFoundError, SpecError, TheodoliteError, one_line
from theodolite.overview.view import Picture
from theodolite.query.compare import records
from theodolite.query.directions import RELIABLE
from theodolite.query.prompts import Order
from theodolite.run_reader import RunReader, open_run, runs
from theodolite.spec_parts import in_order
from theodolite.stored_runs import compare
from theodolite.version import __version__

_INSTRUCTIONS = (
    "Results of Theodolite, which surveys the geometry of language models. Begin with `runs`, then `overview`. Quote a "
    "number with its interval (band_low to band_high if the depth was chosen for its value) and with all badges that "
    "begin with ⚠. A direction with a reliability below 0.5 is mostly noise."
)
_CACHED_RUNS = 8
_LONGEST_ERROR = 600  # characters: some list all statistics
_ENDS = ("value", "low", "high", "band_low", "band_high")

RunId = Annotated[str, Field(description="Id of a run, as `runs` lists it.")]
Contrast = Annotated[str | None, Field(description="Name of a contrast. Default: the first one.")]
Site = Annotated[str | None, Field(description="Site in the block, such as resid_pre. Default: of the best depth.")]
Layer = Annotated[int | None, Field(description="Layer, from 0. Default: of the best depth.")]
Answer = dict[str, Any]


def create_server(source: str | Client, *, allow_texts: bool = False) -> MCPServer[Any]:
    """Return a server with the tools of one store, by its URL, or of one service.

    Args:
        source: the store or the service.
        allow_texts: whether answers have the texts of prompts, also those of harmful ones.
    """
    server = MCPServer[Any](
        "theodolite", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False
    )
    tools = _Tools(source, allow_texts)
    for tool in (tools.runs, tools.overview, tools.curves, tools.direction_tokens, tools.prompts, tools.compare):
        about = ToolAnnotations(read_only_hint=True)
        server.add_tool(_answered(tool), description=getdoc(tool), annotations=about, structured_output=False)
    return server


class _Tools:
    """The tools; the docstring of each is what an agent reads."""

    def __init__(self, source: str | Client, allow_texts: bool) -> None:
        self._list: Callable[..., pd.DataFrame]
        self._compare: Callable[..., pd.DataFrame]
        if isinstance(source, Client):
            self._list, self._compare, opener = source.runs, source.compare, source.run
        else:
            self._list, self._compare = partial(runs, source), partial(compare, store=source)
            opener = partial(open_run, source)
        self._open: Callable[[str], RunReader] = lru_cache(_CACHED_RUNS)(opener)
        self._allow_texts = allow_texts

    def runs(self, model: str | None = None, contrast: str | None = None) -> Answer:
        """List the complete runs, newest first. `model` selects by a part of the name, `contrast` by the whole name."""
        return {"runs": records(self._list(model, contrast))}

    def overview(self, run: RunId, contrast: Contrast = None, site: Site = None, layer: Layer = None) -> Answer:
        """Answer four questions about a contrast: separable, beyond words, beyond untrained, used by the model?

        Returns the finding in one sentence, each question with its number, interval and rule, and what limits them.
        """
        opened = self._open(run)
        found = opened.overview(contrast, site=site, layer=layer)
        questions = [
            {"question": tile.question, "answer": tile.answer, "number": tile.number, "rule": tile.rule}
            | ({name: getattr(tile.glyph, name) for name in ("value", "low", "high", "chance")} if tile.glyph else {})
            for tile in found.tiles
        ]
        explained = {("⚠ " if badge.is_warning else "") + badge.label: badge.text for badge in found.badges}
        return {**_about(opened, found), "sentence": found.sentence, "questions": questions, "badges_mean": explained}

    def curves(
        self,
        run: RunId,
        statistic: Annotated[str, Field(description="Such as auroc, or variance_mean.")] = "auroc",
        contrast: Contrast = None,
        set: Annotated[str | None, Field(description="Prompt set, for a statistic of single sets.")] = None,
        site: Annotated[str, Field(description="Site in the block.")] = "resid_pre",
        position: Annotated[
            int | str | None, Field(description="Token position from the end, or its name. Default: all.")
        ] = None,
    ) -> Answer:
        """Return a statistic along depth with its 95 % intervals: `low` to `high` holds for a depth chosen beforehand.

        `band_low` to `band_high` holds at all depths at once. An unknown statistic gives an error with known ones.
        """
        opened = self._open(run)
        frame = opened.curves_frame(statistic, set=set, contrast=contrast, site=site, position=position)
        frame = frame.dropna(subset=["value"])
        named = [dim for dim in ("set", "contrast", "site", "position") if frame[dim].ne("").any()]
        if "contrast" in named and contrast is None and len(frame):
            contrast = str(frame["contrast"].iloc[0])
            frame = frame[frame["contrast"] == contrast]
        shown = []
        for at, rows in frame.groupby(named, sort=False):
            place: Answer = dict(zip(named, at, strict=True))
            layers = rows["layer"].tolist()
            columns = {end: rows[end].tolist() for end in _ENDS if rows[end].notna().any()}
            reliability = {"reliability": _reliability(opened, place, layers)} if "contrast" in place else {}
            shown.append(place | {"layer": layers} | columns | reliability)
        return {"run": run, "statistic": statistic, "badges": _badges(opened, contrast), "curves": shown}

    def direction_tokens(
        self,
        run: RunId,
        contrast: Contrast = None,
        site: Site = None,
        layer: Layer = None,
        count: Annotated[int, Field(ge=1, le=50)] = 10,
    ) -> Answer:
        """Return the tokens whose logits the direction of a contrast raises and lowers most, through the unembedding.

        `z` compares with permuted labels; a |z| below `chance_limit` is no finding.
        """
        opened = self._open(run)
        found = opened.overview(contrast, site=site, layer=layer)
        table = opened.table("direction_tokens")
        of_place = (table["contrast"] == found.contrast) & (table["site"] == found.site)
        rows = table[of_place & (table["layer"] == found.layer)]
        (*_, last) = in_order(rows["position"].tolist() or [-1])
        rows = rows[rows["position"] == last].sort_values("place")
        ends = {end: rows[rows["end"] == end].head(count) for end in ("raised", "lowered")}
        tokens = {end: records(of_end[["token", "change", "z"]]) for end, of_end in ends.items()}
        return {**_about(opened, found), **tokens, "chance_limit": opened.group("logit_lens", "n_used").attrs["limit"]}

    def prompts(
        self,
        run: RunId,
        set: Annotated[str, Field(description="Name of the prompt set.")],
        contrast: Contrast = None,
        site: Site = None,
        layer: Layer = None,
        order: Annotated[Order, Field(description="margin: worst classified first; -margin: best first.")] = "margin",
        count: Annotated[int, Field(ge=1, le=100)] = 10,
    ) -> Answer:
        """Return prompts of a set with their held-out scores along the direction of a contrast, in pooled deviations.

        A negative margin is a wrong classification. Texts are there only if the user has allowed them.
        """
        opened = self._open(run)
        table = opened.prompts(set, contrast=contrast, site=site, layer=layer, order=order)
        place, scored = table.attrs["place"], table["margin"].notna()
        columns = ["sample", "score", "margin", "n_tokens", "status", *(["text"] if self._allow_texts else [])]
        about: Answer = {"run": run, "set": set, "badges": ["⚠ no scores"]}
        if place is not None:
            about |= {"place": place, "badges": _badges(opened, place["contrast"])}
            about["reliability"] = _reliability(opened, place, [place["layer"]])[0]
        counts = {"prompts": len(table), "scored": int(scored.sum()), "wrong": int((table["margin"] < 0).sum())}
        texts = {} if self._allow_texts else {"texts": "withheld; the user can start theodolite mcp --allow-texts"}
        return {**about, **counts, **texts, "items": records(table[columns].head(count))}

    def compare(
        self,
        runs: Annotated[Sequence[str], Field(description="Ids of runs.", min_length=1)],
        statistic: Annotated[str | None, Field(description="Such as auroc: also return its curves.")] = None,
        contrast: Annotated[str | Sequence[str], Field(description="A contrast, or RUN:CONTRAST for each run.")] = (),
        set: Annotated[str | None, Field(description="Prompt set, for a statistic of single sets.")] = None,
    ) -> Answer:
        """Compare runs: the depths of the smallest cosine, of the largest AUROC, and of the first separation.

        Two runs on the same prompts have the difference of their AUROCs with its simultaneous interval.
        """
        frame = self._compare(runs, statistic, contrast=contrast, set=set)
        found = {str(name): value for name, value in frame.attrs.items()}
        pairs = frame[["run_id", "contrast"]].drop_duplicates().to_dict("records") if "contrast" in frame else []
        badges = {pair["run_id"]: _badges(self._open(pair["run_id"]), pair["contrast"] or None) for pair in pairs}
        curves = []
        if statistic is not None:
            for (run, site), rows in frame.dropna(subset=["value"]).groupby(["run_id", "site"], sort=False):
                columns = {name: rows[name].tolist() for name in ("relative_depth", "value", "low", "high")}
                curves.append({"run": run, "site": site, **columns})
        return {**found, "badges": badges, "curves": curves}


def _answered(tool: Callable[..., Answer]) -> Callable[..., str]:
    """Return a tool whose answers are JSON without spaces for people, and whose errors are one short line."""

    @wraps(tool)
    def answer(*given: Any, **named: Any) -> str:
        try:
            return json.dumps(_plain(tool(*given, **named)), ensure_ascii=False)
        except TheodoliteError as error:
            raise ToolError(shorten(one_line(error), _LONGEST_ERROR, placeholder=" …")) from error

    return answer


def _about(run: RunReader, found: Picture) -> Answer:
    """Return what every answer about the direction at one depth begins with."""
    place = {"contrast": found.contrast, "site": found.site}
    reliability = _reliability(run, place, [found.layer])[0]
    noise = ["⚠ unreliable direction"] if reliability < RELIABLE else []
    badges = [*_badge_labels(found), *noise]
    return {"run": run.id, **place, "layer": found.layer, "badges": badges, "reliability": reliability}


def _badges(run: RunReader, contrast: str | None) -> list[str]:
    try:
        return _badge_labels(run.overview(contrast))
    except (ResultsNotFoundError, SpecError):  # it has no separation, or that of other contrasts
        return ["⚠ no overview, so what limits this is not known"]


def _badge_labels(found: Picture) -> list[str]:
    return [("⚠ " if badge.is_warning else "") + badge.label for badge in found.badges]


def _reliability(run: RunReader, place: dict[str, Any], layers: Sequence[int]) -> list[float]:
    """Return the reliability of a contrast's directions at some layers of a site; NaN where it is not measured."""
    try:
        measured = run.group("directions", "reliability", contrast=place["contrast"], site=place["site"])["reliability"]
    except (ResultsNotFoundError, SpecError):
        return [np.nan] * len(layers)
    at = measured.sel(position=place["position"]) if "position" in place else measured.isel(position=-1)
    return [float(value) for value in at.reindex(layer=list(layers)).values]


def _plain(value: Any) -> Any:
    """Return JSON types, with five digits and without NaN."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
