"""The table of the tokens of directions, against dense logits in float64 and their derivative by autograd."""

import numpy as np
import pytest
import torch
from support import tiny
from support.analysing import context_of
from support.each import each
from support.stored import assert_declared, store_run

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.query.direction_tokens import chance_limit, read_direction_tokens
from theodolite.store.tables import decode_table
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.groups.logit_lens import compute as logit_lens
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.permuted_labels import permuted_contrast
from theodolite_jobs.statistics.norms import Norm

WIDTH, LAYERS, TOKENS, KNOWN = 48, 3, 10, 61  # the tokenizer knows fewer tokens than the table has rows
PAIRED = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}
UNPAIRED = {"refusal": {"positive": "bad", "negative": "good", "paired": False}}


class Tokenizer:
    """A tokenizer of KNOWN tokens, of which one has no text."""

    def __len__(self):
        return KNOWN

    def convert_ids_to_tokens(self, ids):
        return [None if token == 7 else f"t{token}" for token in ids]

    def convert_tokens_to_string(self, pieces):
        return " " + "".join(pieces)


IDS = np.array([token for token in range(KNOWN) if token != 7])


def weights_of(family, folder):
    model = tiny.model_with_head(family)
    model.save_pretrained(folder)
    return Weights(folder, model.config)


def arrays_of(n=14, seed=0, shift=0.4, sites=("resid_pre", "resid_mid")):
    """Return the activations of two sets whose means differ."""
    rng = np.random.default_rng(seed)
    moved = shift * rng.normal(size=WIDTH)
    return {
        name: {
            site: (rng.normal(size=(n + extra, 2, LAYERS, WIDTH)) + 1 + sign * moved).astype(np.float32)
            for site in sites
        }
        for name, sign, extra in (("bad", 1, 0), ("good", 0, extra_of(n)))
    }


def extra_of(n):
    return 0 if n == 14 else 3


def computed(run, contrasts, weights):
    context = context_of(run, contrasts, weights=weights)
    context.open_tokenizer = lambda _: Tokenizer()
    result = logit_lens.compute(context)
    return result, decode_table(result.tables["direction_tokens"], "direction_tokens"), context


def logits(weights, x):
    """Return the logits of states without bias and soft cap, in float64."""
    norm, table, config = weights.final_norm(), weights.unembedding().double(), weights.config
    if norm is not None:
        scale, bias = torch.from_numpy(norm.scale), torch.from_numpy(norm.bias)
        x = x - x.mean(dim=-1, keepdim=True) if norm.kind == "layer" else x
        x = x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + norm.epsilon) * scale + bias
    scale = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    return scale * (x @ table.T)


def reference(weights, positive, negative, labels):
    """Return the changes of all tokens under the real labels, and their z against the other rows of `labels`."""
    midpoint = torch.from_numpy((positive.mean(axis=0) + negative.mean(axis=0)) / 2)
    samples, found = np.concatenate([positive, negative]), []
    for row in labels:
        difference = torch.from_numpy(samples[row].mean(axis=0) - samples[~row].mean(axis=0))
        _, change = torch.autograd.functional.jvp(lambda x: logits(weights, x), midpoint, difference)
        found.append((change[IDS] - change[IDS].mean()).numpy())
    null = np.array(found[1:])
    return found[0], (found[0] - null.mean(axis=0)) / null.std(axis=0, ddof=1)


# With RMSNorm, with LayerNorm, with factors of the logits, tied and untied.
@each("family", ["llama", "gpt2", "cohere", "granite", "gemma2"])
def test_tokens_and_z_are_those_of_dense_logits(family, tmp_path):
    weights = weights_of(family, tmp_path / "model")
    contrasts = UNPAIRED if family == "gpt2" else PAIRED
    arrays = arrays_of(n=13 if family == "gpt2" else 14)
    run = store_run(tmp_path / "store", arrays, contrasts=contrasts)
    result, table, context = computed(run, contrasts, weights)
    assert list(table) == GROUPS["logit_lens"].tables[0].names
    assert len(table) == 2 * 2 * LAYERS * 2 * TOKENS
    assert result.arrays["n_used"].tolist() == [[[len(arrays[name]["resid_pre"]) for name in ("bad", "good")]] * 2]
    for at, (position, site, layer) in enumerate([(-1, "resid_mid", 2), (-2, "resid_pre", 0)]):
        labels = permuted_contrast(context, "refusal", position).labels
        sides = [arrays[name][site][:, position, layer].astype(np.float64) for name in ("bad", "good")]
        change, z = reference(weights, *sides, labels)
        rows = table[(table["position"] == position) & (table["site"] == site) & (table["layer"] == layer)]
        assert set(rows["depth"]) == {5 if at == 0 else 0}
        for end, order in (("raised", np.argsort(-change)), ("lowered", np.argsort(change))):
            own = rows[rows["end"] == end]
            assert own["place"].tolist() == [*range(TOKENS)]
            assert own["token_id"].tolist() == IDS[order[:TOKENS]].tolist()
            assert own["token"].tolist() == [f" t{token}" for token in own["token_id"]]
            np.testing.assert_allclose(own["change"], change[order[:TOKENS]], rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(own["z"], z[order[:TOKENS]], rtol=1e-6)


def test_without_a_final_norm_the_unembedding_reads_the_difference(tmp_path, monkeypatch):
    weights = weights_of("llama", tmp_path / "model")
    monkeypatch.setattr(weights, "final_norm", lambda: None)
    arrays = arrays_of()
    run = store_run(tmp_path / "store", arrays, contrasts=PAIRED)
    _, table, _ = computed(run, PAIRED, weights)
    first, second = (arrays[name]["resid_pre"][:, -1, 1].astype(np.float64).mean(axis=0) for name in ("bad", "good"))
    rows = weights.unembedding().double().numpy()[IDS]
    change = (rows - rows.mean(axis=0)) @ (first - second)
    own = table[(table["position"] == -1) & (table["site"] == "resid_pre") & (table["layer"] == 1)]
    assert own["change"].max() == pytest.approx(change.max())
    assert own["change"].min() == pytest.approx(change.min())


def test_a_direction_of_one_token_finds_this_token_first(tmp_path):
    """The positive set moves along the row of token 23, through the derivative of the norm."""
    weights, token = weights_of("llama", tmp_path / "model"), 23
    arrays = arrays_of(n=60, shift=0.0)
    base = np.concatenate([arrays[name]["resid_mid"][:, -1, 1] for name in arrays]).mean(axis=0).astype(np.float64)
    rows = weights.unembedding().double().numpy()
    norm = weights.final_norm()
    assert isinstance(norm, Norm)
    pulled = logit_lens.back_through_norm(rows[token] - rows[IDS].mean(axis=0), base, norm)
    arrays["bad"]["resid_mid"][:, -1, 1] += (2 * pulled / np.linalg.norm(pulled)).astype(np.float32)
    run = store_run(tmp_path / "store", arrays, contrasts=UNPAIRED)
    result, table, _ = computed(run, UNPAIRED, weights)
    own = table[(table["position"] == -1) & (table["site"] == "resid_mid") & (table["layer"] == 1)]
    first = own[(own["end"] == "raised") & (own["place"] == 0)].iloc[0]
    assert (first["token_id"], first["token"]) == (token, " t23")
    assert first["z"] > 2 * result.attributes["limit"]
    others = table[(table["site"] == "resid_pre") & (table["position"] == -1)]
    assert (others["z"].abs() < result.attributes["limit"]).all()  # no effect at the other depths


def test_the_results_are_stored_and_read_by_depth(tmp_path):
    weights = weights_of("llama", tmp_path / "model")
    run = store_run(tmp_path / "store", arrays_of(), contrasts=PAIRED)
    context = context_of(run, PAIRED, weights=weights)
    context.open_tokenizer = lambda _: Tokenizer()
    assert read_direction_tokens(run, "refusal", -1).empty
    compute_groups(context, [name for name in GROUPS if GROUPS[name].always or name == "logit_lens"])
    assert_declared(run)
    assert len(read_direction_tokens(run, "refusal", -1)) == 2 * LAYERS * 2 * TOKENS
    here = read_direction_tokens(run, "refusal", -2, "resid_mid", 1)
    assert set(map(tuple, here[["position", "site", "layer", "depth"]].values)) == {(-2, "resid_mid", 1, 3)}
    assert len(here) == 2 * TOKENS
    assert read_direction_tokens(run, "other", -1).empty
    assert 3 < chance_limit(run) < 4


def test_outputs_of_attention_are_no_states_and_equal_means_have_no_tokens(tmp_path):
    weights = weights_of("llama", tmp_path / "model")
    arrays = arrays_of(sites=("resid_pre", "attn_out"))
    for of_set in arrays.values():
        of_set["resid_pre"][:, -1] = 1
    run = store_run(tmp_path / "store", arrays, contrasts=PAIRED)
    _, table, _ = computed(run, PAIRED, weights)
    assert set(table["site"]) == {"resid_pre"}
    assert set(table["position"]) == {-2}
    for of_set in arrays.values():
        of_set["resid_pre"][:] = 1
    still = store_run(tmp_path / "still", arrays, contrasts=PAIRED)
    result, nothing, _ = computed(still, PAIRED, weights)
    assert nothing.empty
    assert list(nothing) == list(table)
    assert result.arrays["n_used"].min() == 14


@each("family, reason", [("bert", "is an encoder and predicts no next token")])
def test_an_encoder_is_refused(family, reason, tmp_path):
    weights = weights_of(family, tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=reason):
        logit_lens.check_decodable(weights)


@each(
    "lack, reason", [("embeds_into_stream", "projects its embeddings"), ("has_unembedding", "no language-model head")]
)
def test_a_model_without_a_head_of_the_stream_is_refused(lack, reason, tmp_path, monkeypatch):
    weights = weights_of("llama", tmp_path / "model")
    monkeypatch.setattr(Weights, lack, False)
    run = store_run(tmp_path / "store", arrays_of(), contrasts=PAIRED)
    context = context_of(run, PAIRED, weights=weights)
    context.open_tokenizer = lambda _: Tokenizer()
    with pytest.raises(UnsupportedModelError, match=reason):
        logit_lens.compute(context)
    _, failed = compute_groups(context, ["logit_lens"])
    assert [*failed] == ["logit_lens"]
