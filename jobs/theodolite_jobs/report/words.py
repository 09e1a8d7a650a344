"""The report's part on words: trajectories of sentences, and the vocabulary."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from theodolite.figures.trajectories import trajectory_curves, trajectory_sphere, trajectory_umap
from theodolite.query.words import along_stream, read_words
from theodolite.sites import depth_label
from theodolite.store.results import read_group
from theodolite.store.runs import Run

_TOKENS = 12  # of a list by length


@dataclass(frozen=True)
class Trajectory:
    """One word's way: what is seen, and its figures by name."""

    title: str
    facts: list[str]
    figures: dict[str, Any]


@dataclass(frozen=True)
class Vocabulary:
    """The table of embeddings: its distances from the sphere, its longest and shortest tokens, and what was decoded."""

    sphere: list[dict[str, Any]]
    norms: dict[str, dict[str, list[str]]]
    decoded: str


def trajectory_sections(run: Run) -> list[Trajectory]:
    """Return the way of each sentence's second-to-last token, as the paper draws it (arXiv 2309.07315)."""
    if "trajectories" not in read_group(run, "words").attrs["tables"]:
        return []
    table, sentences = read_words(run, "trajectories"), run.record.spec.words.sentences
    found = []
    for number, rows in table.groupby("sentence"):
        before_text = rows[~rows["next_is_special"]]
        of_token = rows[rows["index"] == (before_text if len(before_text) else rows)["index"].max()]
        token, following = (str(of_token[name].iloc[0]).strip() for name in ("token", "next_token"))
        figures = {"on the sphere": trajectory_sphere(of_token), "measured": trajectory_curves(of_token)}
        if "umap_1" in of_token:
            figures["in the UMAP of the embeddings"] = trajectory_umap(of_token)
        title = f"“{sentences[int(str(number))]}”: {token}, before {following}"
        found.append(Trajectory(title, list(_facts(of_token)), figures))
    return found


def vocabulary_section(run: Run) -> Vocabulary:
    """Return what is said of the table of embeddings."""
    attributes = read_group(run, "words").attrs
    norms = read_words(run, "norm_tokens")
    short = norms[norms["place"] < _TOKENS].sort_values("place", kind="stable")
    lists: dict[str, dict[str, list[str]]] = {}
    for (measure, end), group in short.groupby(["measure", "end"], sort=False):
        lists.setdefault(str(measure), {})[str(end)] = group["token"].tolist()
    against = attributes["decoded_against"]
    said = "; ".join([against] if isinstance(against, str) else against)
    sphere: list[dict[str, Any]] = read_words(run, "embedding_sphere").to_dict("records")  # type: ignore[assignment]
    return Vocabulary(sphere, lists, f"Singular vectors are decoded against: {said}")


def _facts(rows: pd.DataFrame) -> Iterator[str]:
    stream = along_stream(rows)
    first, last = stream.iloc[0], stream.iloc[-1]
    yield (
        f"It begins {first['angle_to_final']:.0f}° from where it ends, and "
        f"{first['angle_to_next']:.0f}° from the next token; it ends {last['angle_to_next']:.0f}° from that."
    )
    leading = stream[stream["rank_of_next"] == 1]
    where = f"; it is first from {depth_label(int(leading['depth'].iloc[0]))} on" if _stays_first(stream) else ""
    yield f"The next token's rank goes from {int(first['rank_of_next'])} to {int(last['rank_of_next'])}{where}."


def _stays_first(stream: pd.DataFrame) -> bool:
    """Return whether the next token, once it is first, stays so."""
    firsts = (stream["rank_of_next"] == 1).tolist()
    return (
        True in firsts
        and all(firsts[firsts.index(True) :])
        and stream["site"].iloc[firsts.index(True)] != "resid_final"
    )
