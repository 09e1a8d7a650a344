"""Words: paths of tokens along the residual stream, and the vocabulary."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from theodolite.groups.words.figures import trajectory_curves, trajectory_sphere
from theodolite.groups.words.sections_biases import bias_sections
from theodolite.groups.words.sections_nouns import noun_sections
from theodolite.query.words import along_stream, read_words
from theodolite.sections.parts import Figure, Section, Table, layer_text, number, texts_of
from theodolite.sections.tokens import token_list
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_TOKENS = 12  # tokens in a list of the longest or shortest
_ROUNDING = 1e-12  # rounding error of a cosine in float64

_HOW_TO_READ = (
    "Angles are measured in all {} dimensions. Angle and rank of the next token follow from the final norm's output at "
    "each depth (logit lens). The grey band is the angles to all tokens, mean ± standard deviation; z, the distance "
    "from it, is not a test. The sphere shows three principal components. Drag it to turn it."
)


def sections(run: Run) -> list[Section]:
    """Return a section for each sentence's trajectory, one for the nouns, for biases, and for the vocabulary."""
    words = read_group(run, "words")
    return [
        *_trajectory_sections(run),
        *noun_sections(run, words),
        *bias_sections(run, words),
        _vocabulary_section(run),
    ]


def _trajectory_sections(run: Run) -> Iterator[Section]:
    """Yield the path of the second-to-last token of each sentence, as in arXiv 2309.07315."""
    if "trajectories" not in read_group(run, "words").attrs["tables"]:
        return
    table, sentences = read_words(run, "trajectories"), run.record.spec.words_options.sentences
    for index, rows in table.groupby("sentence"):
        before_text = rows[~rows["next_is_special"]]
        path = rows[rows["index"] == (before_text if len(before_text) else rows)["index"].max()]
        token, following = (str(path[name].iloc[0]).strip() for name in ("token", "next_token"))
        figures = {
            "sphere": ("Path on the sphere", trajectory_sphere),
            "curves": ("Angles and rank of the next token by depth", trajectory_curves),
        }
        yield Section(
            f"Words: trajectory of the token “{token}” (next token: “{following}”) in the sentence "
            f"“{sentences[int(str(index))]}”",
            [*_path_facts(path), *_other_paths(before_text)],
            headline=_path_headline(path, before_text),
            figures=[
                Figure(f"words.{index}.{name}", caption, partial(draw, path))
                for name, (caption, draw) in figures.items()
            ],
            how_to_read=_HOW_TO_READ.format(run.record.model.d_model),
        )


def _other_paths(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence about the paths of all tokens of a sentence that precede text; none without several tokens."""
    paths = _paths(rows)
    if len(paths) < 2:
        return
    ends = [(path.iloc[0], path.iloc[-1]) for path in paths]
    text = f"In {_n_leading(paths)} of the {len(paths)} paths, the next token has rank 1 at the last depth"
    z = np.array([[row["angle_to_next_z"] for row in pair] for pair in ends])
    if np.isfinite(z).all():
        text += (
            f"; over all paths, z is {z[:, 0].min():.1f} to {z[:, 0].max():.1f} at the first depth and "
            f"{z[:, 1].min():.1f} to {z[:, 1].max():.1f} at the last"
        )
    yield f"This is one path of {len(paths)} in the sentence. {text}."


def _paths(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the path of each token, along the stream."""
    return [along_stream(path) for _, path in rows.groupby("index")]


def _n_leading(paths: Sequence[pd.DataFrame]) -> int:
    """Return in how many paths the next token has rank 1 at the last depth."""
    return sum(int(path["rank_of_next"].iloc[-1] == 1) for path in paths)


def _path_headline(path: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return the rank of the next token at both ends of a path, and how many paths of the sentence end at rank 1.

    Args:
        path: the shown path.
        rows: all paths of the sentence that precede text.
    """
    first, last = along_stream(path)["rank_of_next"].iloc[[0, -1]].astype(int)
    paths = _paths(rows)
    of_all = f"; {_n_leading(paths)} of {len(paths)} paths end at rank 1" if len(paths) > 1 else ""
    return f"The next token has rank {first} at the first depth and {last} at the last{of_all}."


def _vocabulary_section(run: Run) -> Section:
    """Return the section about the embeddings of the vocabulary."""
    matrices = texts_of(read_group(run, "words").attrs["decoded_against"])
    sphere = read_words(run, "embedding_sphere").replace({"setting": "original"}, "as stored")
    return Section(
        "Words: embeddings of the vocabulary",
        list(_sphere_facts(sphere)),
        tables=[_distances(sphere), _lengths(read_words(run, "norm_tokens"))],
        notes=[
            "the stored table head_tokens ranks tokens for each singular vector, by the dot product of the vector with "
            "the token's row of a matrix; the column “against” names the matrix",
            *matrices,
        ],
        headline=_sphere_headline(sphere),
    )


def _sphere_facts(sphere: pd.DataFrame) -> Iterator[str]:
    first, best = sphere.iloc[0], sphere.sort_values("cosine_distance_mean", kind="stable").iloc[0]
    if _keeps_directions(sphere):
        yield (
            "By construction, the final norm without its scale changes only the length of an embedding, not its "
            f"direction. Mean L2 distance between an embedding {first['setting']} and its projection on the sphere of "
            f"the norm: {first['l2_mean']:.3g} (n = {int(first['n'])} tokens)."
        )
        return
    smallest = f"; smallest: {best['cosine_distance_mean']:.4f} ({best['setting']})"
    yield (
        f"Mean of (1 - cosine) between an embedding {first['setting']} and its projection on the sphere of the final "
        f"norm: {first['cosine_distance_mean']:.4f}{smallest if best['setting'] != first['setting'] else ''} "
        f"(n = {int(first['n'])} tokens; equal directions give 0)."
    )


def _keeps_directions(sphere: pd.DataFrame) -> bool:
    """Return whether the final norm without its scale changes only the length of an embedding."""
    return bool(sphere["cosine_distance_mean"].iloc[0] < _ROUNDING)


def _sphere_headline(sphere: pd.DataFrame) -> str:
    """Return how far embeddings lie from their projections on the sphere of the final norm."""
    first = sphere.iloc[0]
    if _keeps_directions(sphere):
        return (
            "By construction, the final norm without its scale changes only an embedding's length; mean distance to "
            f"its sphere: {first['l2_mean']:.3g}."
        )
    return (
        "Mean of (1 - cosine) between an embedding and its projection on the final norm's sphere: "
        f"{first['cosine_distance_mean']:.4f} (equal directions give 0)."
    )


def _distances(sphere: pd.DataFrame) -> Table:
    lengths = [f"{mean:.3f} ± {std:.3f}" for mean, std in zip(sphere["l2_mean"], sphere["l2_std"], strict=True)]
    directions = zip(sphere["cosine_distance_mean"], sphere["cosine_distance_std"], strict=True)
    cosines = [f"{mean:.4f} ± {std:.4f}" for mean, std in directions]
    rows = [list(row) for row in zip(sphere["setting"], lengths, cosines, strict=True)]
    caption = "Distance of embeddings from the projection of the stored embedding on the sphere of the final norm"
    note = (
        f"Mean ± standard deviation over {int(sphere['n'].iloc[0])} tokens. Row “centred”: embeddings minus their "
        "mean. Row “scaled”: embeddings scaled to the mean length √d_model."
    )
    return Table(caption, ["embeddings", "L2 distance", "1 - cosine"], rows, note)


def _lengths(norms: pd.DataFrame) -> Table:
    short = norms[norms["place"] < _TOKENS].sort_values("place", kind="stable")
    lists: dict[str, dict[str, str]] = {}
    for (measure, end), group in short.groupby(["measure", "end"], sort=False):
        lists.setdefault(str(measure), {})[str(end)] = token_list(group["token"])
    rows = [[measure, ends.get("top", ""), ends.get("bottom", "")] for measure, ends in lists.items()]
    sentences = ["Row “norm”: length of the embedding."]
    if "scaled norm" in lists:
        sentences.append("Row “scaled norm”: its length after multiplication by the scale γ of the final norm.")
    if "norm + bias" in lists:
        sentences.append("Rows with “bias”: plus the dot product of the embedding with the bias β of the final norm.")
    caption = "Tokens with the longest and the shortest embeddings"
    return Table(caption, ["length", "longest", "shortest"], rows, " ".join(sentences))


def _of_vocabulary(row: pd.Series) -> str:
    """Return the angles of a state to all tokens, the difference and z, after a comma; empty without z."""
    if not np.isfinite(row["angle_to_next_z"]):
        return ""
    return (
        f", where all tokens of the vocabulary have {row['vocabulary_angle_mean']:.0f}° ± "
        f"{row['vocabulary_angle_sd']:.1f}° (difference "
        f"{number(row['angle_to_next'] - row['vocabulary_angle_mean'], 1)}°, z = {row['angle_to_next_z']:.1f})"
    )


def _path_facts(rows: pd.DataFrame) -> Iterator[str]:
    stream = along_stream(rows)
    first, last = stream.iloc[0], stream.iloc[-1]
    yield (
        f"Angle to the token's own final state: {first['angle_to_final']:.0f}° at the first depth; by definition it is "
        "0° at the last."
    )
    for row, where in ((first, "first"), (last, "last")):
        yield f"Angle to the next token at the {where} depth: {row['angle_to_next']:.0f}°{_of_vocabulary(row)}."
    leads = (stream["rank_of_next"] == 1).to_numpy()
    start = int(leads.argmax())  # the first depth with rank 1
    stays = leads[start:].all() and stream["site"].iloc[start] != "resid_final"
    since = f"; it is 1 at every depth from {layer_text(int(stream['depth'].iloc[start]))} on" if stays else ""
    yield (
        f"Rank of the next token: {int(first['rank_of_next'])} at the first depth, {int(last['rank_of_next'])} at the "
        f"last{since}."
    )
