"""The table of families: what a survey can do with each, from the records and from a sweep over tiny models.

`swept.json` is the short form of the newest result of `benchmarks/families.py`; `docs/families.py` writes it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from theodolite.sites import BLOCK_SITES, Site
from theodolite_jobs.models.families import FAMILIES, REFUSED, with_head_site

SWEPT = Path(__file__).with_name("swept.json")


@dataclass(frozen=True)
class SupportedFamily:
    """One row of the table; a configuration with special options may have fewer sites, or be refused."""

    family: str  # `model_type` in config.json
    known_by: Literal["record", "probe", "refused"]
    missing_sites: tuple[Site, ...] = ()  # the sites that no block has; only post-norm blocks have resid_mid_sum
    heads: bool = False
    words: bool = False
    tensor_parallel: bool | None = False  # None if the sweep lacks the family, as for the next field
    half_precision: tuple[str, ...] | None = ()  # the dtypes of two bytes in which the parity check passes
    note: str = ""  # the text model of a multimodal family, sites of some blocks, why it or its heads are refused


def supported_families() -> list[SupportedFamily]:
    """Return every family that has a record, and every other one that the sweep tried, by name."""
    swept: dict[str, dict[str, Any]] = json.loads(SWEPT.read_text(encoding="utf-8"))
    parts = {facts.get("text_model") for facts in swept.values()} - set(swept)  # they are no models of their own
    rows = [_row(family, swept.get(family, {})) for family in {*FAMILIES, *REFUSED, *swept} - parts]
    return sorted(rows, key=lambda row: row.family)


def _row(family: str, swept: dict[str, Any]) -> SupportedFamily:
    text = swept.get("text_model", family)
    if reason := REFUSED.get(text) or (text not in FAMILIES and swept.get("refused")):
        return SupportedFamily(family, "refused", note=reason)
    half = tuple(swept["half_precision"]) if "half_precision" in swept else None
    about = f"surveyed as its text model, {text}" if text != family else ""
    if text in FAMILIES and FAMILIES[text].encoder_alone:
        about = "surveyed as its encoder"
    if text not in FAMILIES:
        sites = [Site(site) for site in swept["sites"]]
        return SupportedFamily(family, "probe", _missing(sites), half_precision=half, note=about)
    record = with_head_site(FAMILIES[text])
    some = ", ".join(site for site in Site if site in record.partial)
    no_heads = record.no_circuits and f"no heads: {record.no_circuits}"
    no_words = record.no_words and f"no words: {record.no_words}"
    return SupportedFamily(
        family,
        "record",
        _missing([*record.sites, *record.partial]),
        heads=not record.no_circuits,
        words=not (record.no_circuits or record.no_words),
        tensor_parallel=swept.get("tensor_parallel"),
        half_precision=half,
        note="; ".join(filter(None, [about, some and f"{some} in some blocks", no_heads, no_words])),
    )


def _missing(sites: list[Site]) -> tuple[Site, ...]:
    return tuple(site for site in BLOCK_SITES if site not in sites and site != Site.RESID_MID_SUM)


COLUMNS = ("family", "known by", "missing sites", "heads", "words", "tensor parallel", "half precision", "note")


def cells(row: SupportedFamily) -> tuple[str, ...]:
    """Return a row as text, one cell for each of `COLUMNS`."""
    if row.known_by == "refused":
        return (row.family, row.known_by, *([""] * 5), row.note)
    half = row.half_precision
    dtypes = "not tried" if half is None else "yes" if len(half) == 2 else f"only {half[0]}" if half else "no"
    said = {None: "not tried", True: "yes", False: "no"}
    works = [said[one] for one in (row.heads, row.words, row.tensor_parallel)]
    return (row.family, row.known_by, ", ".join(row.missing_sites) or "none", *works, dtypes, row.note)
