"""Words: the ways of sentences' tokens through the model, and the vocabulary."""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from theodolite.figures.words import trajectory_curves, trajectory_sphere, trajectory_umap
from theodolite.query.words import along_stream, read_words
from theodolite.sections.parts import Figure, Section, Table
from theodolite.sites import depth_label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_TOKENS = 12  # of a list by length
_ROUNDING = 1e-12  # of a cosine in float64

_HOW_TO_READ = (
    "Angles are measured in all {} dimensions; the angle to the next token, and its rank, are taken as the vocabulary "
    "would see the state: after the final norm. The sphere shows directions in the three dimensions that hold most of "
    "them (a principal component analysis without centring), so near on it need not be near in truth. It can be turned"
)


def sections(run: Run) -> list[Section]:
    """Return a section for each sentence's trajectory, and one for the vocabulary."""
    return [*_trajectory_sections(run), _vocabulary_section(run)]


def _trajectory_sections(run: Run) -> Iterator[Section]:
    """Yield the way of each sentence's second-to-last token, as the paper draws it (arXiv 2309.07315)."""
    if "trajectories" not in read_group(run, "words").attrs["tables"]:
        return
    table, sentences = read_words(run, "trajectories"), run.record.spec.words.sentences
    for number, rows in table.groupby("sentence"):
        before_text = rows[~rows["next_is_special"]]
        of_token = rows[rows["index"] == (before_text if len(before_text) else rows)["index"].max()]
        token, following = (str(of_token[name].iloc[0]).strip() for name in ("token", "next_token"))
        drawn = {"sphere": ("On the sphere", trajectory_sphere), "curves": ("Measured", trajectory_curves)}
        if "umap_1" in of_token:
            drawn["umap"] = ("In the UMAP of the embeddings", trajectory_umap)
        yield Section(
            f"Traveling words: “{sentences[int(str(number))]}”, {token}, before {following}",
            list(_facts(of_token)),
            [
                Figure(f"words.{number}.{name}", caption, partial(draw, of_token))
                for name, (caption, draw) in drawn.items()
            ],
            notes=[_HOW_TO_READ.format(run.record.model.d_model)],
        )


def _vocabulary_section(run: Run) -> Section:
    """Return what is said of the table of embeddings."""
    against = read_group(run, "words").attrs["decoded_against"]
    said = "; ".join([against] if isinstance(against, str) else against)
    sphere = read_words(run, "embedding_sphere")
    return Section(
        "The vocabulary",
        list(_sphere_facts(sphere)),
        tables=[_distances(sphere), _lengths(read_words(run, "norm_tokens"))],
        notes=[f"Singular vectors are decoded against: {said}"],
    )


def _sphere_facts(sphere: pd.DataFrame) -> Iterator[str]:
    first, best = sphere.iloc[0], sphere.sort_values("cosine_distance_mean", kind="stable").iloc[0]
    if first["cosine_distance_mean"] < _ROUNDING:
        yield (
            f"A norm keeps every direction of the table of embeddings ({first['setting']}): over n = "
            f"{int(first['n'])} tokens lengths alone lie off its sphere, by {first['l2_mean']:.3g} on average."
        )
        return
    nearest = f"; nearest comes {best['setting']}, with {best['cosine_distance_mean']:.4f}"
    yield (
        f"The table of embeddings ({first['setting']}) lies {first['cosine_distance_mean']:.4f} in 1 - cosine from the "
        f"sphere that a norm puts it on, over n = {int(first['n'])} tokens"
        f"{nearest if best['setting'] != first['setting'] else ''}."
    )


def _distances(sphere: pd.DataFrame) -> Table:
    rows = [
        [
            str(row["setting"]),
            f"{row['l2_mean']:.3f} ± {row['l2_std']:.3f}",
            f"{row['cosine_distance_mean']:.4f} ± {row['cosine_distance_std']:.4f}",
        ]
        for row in sphere.to_dict("records")
    ]
    caption = f"Distances from the sphere, mean and standard deviation over {int(sphere['n'].iloc[0])} tokens"
    return Table(caption, ["embeddings", "L2 distance", "1 - cosine"], rows)


def _lengths(norms: pd.DataFrame) -> Table:
    short = norms[norms["place"] < _TOKENS].sort_values("place", kind="stable")
    lists: dict[str, dict[str, str]] = {}
    for (measure, end), group in short.groupby(["measure", "end"], sort=False):
        lists.setdefault(str(measure), {})[str(end)] = "  ".join(map(_visible, group["token"]))
    rows = [[measure, ends.get("top", ""), ends.get("bottom", "")] for measure, ends in lists.items()]
    return Table("The longest and shortest tokens", ["length", "longest", "shortest"], rows)


def _visible(token: str) -> str:
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "∅"


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
