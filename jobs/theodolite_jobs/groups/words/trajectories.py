"""The table `trajectories`: angles, ranks and coordinates of each token of the captured sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from theodolite.sites import Site, depth
from theodolite.spec_parts import SENTENCES
from theodolite.store.commits import read_commit
from theodolite.store.prompts import read_tokens
from theodolite.store.runs import Run
from theodolite.store.shards import read_shard
from theodolite_jobs.groups.words.formulas import augmented, on_device, token_ranks, with_bias
from theodolite_jobs.groups.words.formulas_trajectories import angles, principal_coordinates, vocabulary_angles
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.statistics.norms import normalised, unit
from theodolite_jobs.statistics.ratio import ratio

TARGET = "unembedding"
"""The value of `site` in the rows for the next token's own unembedding vector."""

_ANGLES = ["angle_to_final", "angle_to_next", "vocabulary_angle_mean", "vocabulary_angle_sd", "angle_to_next_z"]
_PCA = ["pca_1", "pca_2", "pca_3"]


def trajectory_table(
    run: Run,
    weights: Weights,
    n_tokens: int,
    device: torch.device,
    special: Sequence[int] = (),
) -> pd.DataFrame:
    """Return a row for each sentence, token except the last, site and layer, and a row for each next token's vector.

    The table leaves out sentences of one token and quarantined sentences.

    Args:
        run: a run that captured the sentences.
        weights: the model's weights on disk.
        n_tokens: number of rows of the vocabulary to rank.
        device: the device that multiplies the states with the vocabulary.
        special: ids of special tokens; the column `next_is_special` marks rows before one.
    """
    commits = [read_commit(run, SENTENCES, index) for index in range(run.record.sets[SENTENCES].n_shards)]
    bad = {sample for commit in commits for sample in commit.quarantined}
    states = {
        site: np.concatenate([read_shard(run, commit, site) for commit in commits]).astype(np.float64)
        for site in run.record.spec.capture.all_sites
        if site not in (Site.HEAD_OUT, Site.ATTN_OUT, Site.MLP_OUT)  # these are no states of the stream
    }
    parts = [
        _sentence_rows(
            run, weights, n_tokens, device, sentence, ids, {site: of_all[sentence] for site, of_all in states.items()}
        )
        for sentence, ids in enumerate(read_tokens(run, SENTENCES))
        if len(ids) > 1 and sentence not in bad
    ]
    if not parts:
        return pd.DataFrame(columns=["sentence"])
    table = pd.concat(parts, ignore_index=True)
    table["next_is_special"] = table["next_token_id"].isin(list(special))
    return table


def _sentence_rows(
    run: Run,
    weights: Weights,
    n_tokens: int,
    device: torch.device,
    sentence: int,
    ids: Sequence[int],
    states: Mapping[Site, NDArray[np.float64]],
) -> pd.DataFrame:
    """Return one sentence's rows.

    `states` are (position, layer, d_model), and (position, d_model) for `resid_final`. Positions before the sentence's
    first token are dropped.
    """
    length, following = len(ids), np.array(ids[1:])
    final = states[Site.RESID_FINAL][-length:-1]
    norm = weights.final_norm()
    targets = np.concatenate([weights.unembedding(slice(token, token + 1)).double().numpy() for token in following])
    bias = weights.unembedding_bias()
    at = [(site, index, layer) for site in states for index, layer in enumerate(_layers(run, site))]
    frames, points = [], []
    for site, index, layer in at:
        own = states[site][-length:-1]
        x = own if site is Site.RESID_FINAL else own[:, index]
        points.append(x if norm is None else normalised(x, norm))
        columns = {"angle_to_final": angles(x, final), "angle_to_next": angles(points[-1], targets)}
        frames.append(_site_rows(sentence, ids, str(site), layer).assign(**columns))
    # All at once, because each call reads the whole table of the vocabulary.
    means, sds = vocabulary_angles(weights.unembedding, n_tokens, np.concatenate(points))
    decoded = augmented(np.concatenate(points), bias)
    logits = on_device(with_bias(weights.unembedding, bias), device)
    ranks = token_ranks(logits, n_tokens, decoded, np.tile(following, len(points)), device)
    stream = pd.concat(frames, ignore_index=True).assign(vocabulary_angle_mean=means, vocabulary_angle_sd=sds)
    stream["angle_to_next_z"] = ratio((stream["angle_to_next"] - means).to_numpy(), sds)
    stream["rank_of_next"] = ranks
    missing = dict.fromkeys(_ANGLES, np.nan)
    last = _site_rows(sentence, ids, TARGET, -1).assign(**missing, rank_of_next=-1)
    points.append(targets)
    table = pd.concat([stream, last], ignore_index=True)
    table[_PCA] = principal_coordinates(unit(np.concatenate(points)))
    return table


def _site_rows(sentence: int, ids: Sequence[int], site: str, layer: int) -> pd.DataFrame:
    where = -1 if layer < 0 else depth(Site(site) if site != Site.RESID_FINAL else Site.RESID_POST, layer)
    numbers = {"sentence": sentence, "index": np.arange(len(ids) - 1), "layer": layer, "depth": where}
    numbers |= {"token_id": np.array(ids[:-1]), "next_token_id": np.array(ids[1:])}
    frame = pd.DataFrame(numbers).astype(np.int32)
    frame.insert(2, "site", site)
    return frame


def _layers(run: Run, site: Site) -> list[int]:
    return [run.record.model.n_layers - 1] if site is Site.RESID_FINAL else run.record.layers
