"""Stored runs of several sets with edge cases, and the definitions that result groups are compared with."""

from dataclasses import dataclass

import numpy as np
from support.stored import store_run

from theodolite.sites import Site
from theodolite.store.result_reader import read_group
from theodolite.store.runs import ModelFacts
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.statistics.norms import Norm

WIDTH, LAYERS = 8, 3
SEQUENTIAL = ("resid_pre", "resid_mid")
PARALLEL = ("resid_pre", "attn_out", "mlp_out")
ASKED = {"travel", "separation", "sphere"}
SIZES = {"bad": 13, "good": 13, "words": 8, "one": 1, "same": 6}
QUARANTINED = {"bad": {5: "not finite"}}
FEW = ("bad", "words")


def contrast(positive, negative, paired=False):
    return {"positive": positive, "negative": negative, "paired": paired}


CONTRASTS = {
    "refusal": contrast("bad", "good", paired=True),
    "unpaired": contrast("bad", "good"),
    "subject": contrast("words", "bad"),
    "itself": contrast("bad", "bad"),
    "mirrored": contrast("bad", "bad", paired=True),
    "lonely": contrast("one", "good"),
    "still": contrast("same", "good"),
}


def silent(*_):
    pass


def draw(n, sites=SEQUENTIAL, positions=2, layers=LAYERS, seed=0, shift=1.0):
    rng = np.random.default_rng(seed)
    return {site: (rng.normal(size=(n, positions, layers, WIDTH)) + shift).astype(np.float32) for site in sites}


@dataclass
class Stored:
    """A run of several sets, and the arrays that it was written from.

    `arrays` are set → site → (sample, position, layer, d_model), `final` is set → (sample, position, d_model).
    """

    run: object
    arrays: dict
    final: dict

    def kept(self, name, excluded=()):
        """Indices of the samples that take part."""
        out = {*QUARANTINED.get(name, {}), *excluded}
        return [sample for sample in range(len(self.final[name])) if sample not in out]

    def at(self, name, site, position, layer, excluded=()):
        """Samples of a set that take part, (sample, d_model), in float64; None at a position that it lacks."""
        if self.arrays[name][site].shape[1] < -position:
            return None
        return self.arrays[name][site][self.kept(name, excluded), position, layer].astype(np.float64)

    def end(self, name, position):
        if self.final[name].shape[1] < -position:
            return None
        return self.final[name][self.kept(name), position].astype(np.float64)


def store(folder, sites=SEQUENTIAL, shard_prompts=4, sets=tuple(SIZES), contrasts=None, **record):
    arrays = {
        name: draw(n, sites, 1 if name == "words" else 2, LAYERS, seed, shift=0.5 + 0.1 * seed)
        for seed, (name, n) in enumerate(SIZES.items())
        if name in sets
    }
    rng = np.random.default_rng(9)
    final = {name: of_set["resid_pre"][:, :, -1] + 1 for name, of_set in arrays.items()}
    final = {name: (values + rng.normal(size=values.shape)).astype(np.float32) for name, values in final.items()}
    if "same" in arrays:
        for values in [*arrays["same"].values(), final["same"]]:
            values[:] = values[:1]
    for values in [*arrays["bad"].values(), final["bad"]]:
        values[5] = np.nan
    run = store_run(
        folder,
        arrays,
        shard_prompts,
        contrasts=contrasts,
        positions={name: [-1] if name == "words" else [-2, -1] for name in arrays},
        quarantined=QUARANTINED,
        final=final,
        **record,
    )
    return Stored(run, arrays, final)


def assert_group(run, name, expected, rtol=1e-9, atol=1e-11):
    """Compare all variables of a group with arrays of the same names."""
    group = read_group(run, name)
    assert set(group.data_vars) == set(expected)
    for variable, values in expected.items():
        np.testing.assert_allclose(group[variable], values, rtol=rtol, atol=atol, err_msg=variable)
    return group


def mean_and_spread(values):
    """Mean and standard deviation (n−1) over samples."""
    return np.mean(values, axis=0), np.std(values, axis=0, ddof=1) if len(values) > 1 else np.full(
        np.shape(values)[1:], np.nan
    )


def cosine(x, y):
    lengths = np.sqrt((x @ x) * (y @ y))
    return x @ y / lengths if lengths > 0 else np.nan


STEPS = ("step_norm_attn", "step_norm_mlp", "step_norm_block", "step_cosine_next", "step_cosine_stream")
PATH = ("path_length", "displacement", "path_ratio")


def way_of(stream, attn, mlp, final, layers, n_layers):
    """One sample's STEPS, (layer, 5), and PATH, written out; `stream` is (layer, d_model), as captured."""
    leaving = []
    for index, layer in enumerate(layers):
        if layer + 1 in layers:
            leaving.append(stream[index + 1])
        else:
            leaving.append(final if layer + 1 == n_layers else None)
    found = np.full((len(layers), 5), np.nan)
    for index, out in enumerate(leaving):
        branch_attn, branch_mlp = attn(index), mlp(index, out)
        if branch_attn is not None:
            found[index, 0] = np.sqrt((branch_attn**2).sum())
        if branch_mlp is not None:
            found[index, 1] = np.sqrt((branch_mlp**2).sum())
        if out is None:
            continue
        step = out - stream[index]
        found[index, 2] = np.sqrt((step**2).sum())
        found[index, 4] = cosine(step, stream[index])
        if index + 1 < len(layers) and leaving[index + 1] is not None:
            found[index, 3] = cosine(step, leaving[index + 1] - out)
    way = np.full(3, np.nan)
    if list(layers) == list(range(n_layers)):
        length, displacement = found[:, 2].sum(), np.linalg.norm(final - stream[0])
        way = np.array([length, displacement, length / displacement])
    return found, way


def expected_travel(stored, layers, n_layers, added):
    """All variables of `travel`; `added` says what a sample's branches add: (arrays of a sample) → attn, mlp."""
    sets = list(stored.arrays)
    shape = (len(sets), 2)
    expected = {"n_samples": np.zeros(shape)}
    for name in STEPS:
        expected |= {f"{name}{end}": np.full((*shape, len(layers)), np.nan) for end in ("", "_std")}
    for name in PATH:
        expected |= {f"{name}{end}": np.full(shape, np.nan) for end in ("", "_std")}
    for row, name in enumerate(sets):
        for column, position in enumerate((-2, -1)):
            final = stored.end(name, position)
            if final is None:
                continue
            found = []
            for index, sample in enumerate(stored.kept(name)):
                of_sample = {
                    site: values[sample, position].astype(np.float64) for site, values in stored.arrays[name].items()
                }
                attn, mlp = added(of_sample)
                found.append(way_of(of_sample["resid_pre"], attn, mlp, final[index], layers, n_layers))
            steps, ways = (np.stack(parts) for parts in zip(*found, strict=True))
            expected["n_samples"][row, column] = len(found)
            for names, values in ((STEPS, steps), (PATH, ways)):
                mean, std = mean_and_spread(values)
                for place, quantity in enumerate(names):
                    expected[quantity][row, column] = mean[..., place]
                    expected[f"{quantity}_std"][row, column] = std[..., place]
    return expected


def by_differences(of_sample):
    stream, middle = of_sample["resid_pre"], of_sample["resid_mid"]
    return (lambda index: middle[index] - stream[index]), (
        lambda index, out: None if out is None else out - middle[index]
    )


def as_captured(of_sample):
    return (lambda index: of_sample["attn_out"][index]), (lambda index, _: of_sample["mlp_out"][index])


def model_of(n_layers):
    words = {
        "kind": "folder",
        "place": "x",
        "revision": "0",
        "family": "llama",
        "dtype": "float32",
        "attention": "sdpa",
    }
    sizes = {"d_model": WIDTH, "n_heads": 2, "n_kv_heads": 2, "d_head": 4, "context_length": 128}
    return ModelFacts(name="tiny", n_layers=n_layers, **words, **sizes)


def assert_same_rows(table, group):
    """Each row of a flat table is one number of the group, and all of them are there but those of single features."""
    kept = [
        variable
        for variable in group.data_vars.values()
        if "position" in variable.dims and not {"d_model", "layer_other"} & set(variable.dims)
    ]
    assert len(table) == sum(variable.size for variable in kept)
    assert set(table["statistic"]) == {variable.name for variable in kept}
    for row in table.to_dict("records"):
        variable = group[row["statistic"]]
        at = {dim: row[dim] for dim in variable.dims}
        np.testing.assert_array_equal(row["value"], float(variable.sel(at)))
        absent = {dim: row[dim] for dim in ("set", "contrast", "site", "norm", "layer") if dim in row and dim not in at}
        assert all(value in ("", -1) for value in absent.values())
        if "site" in row:
            along = {"resid_pre": 0, "resid_mid": 1}
            assert row["depth"] == (2 * row["layer"] + along[row["site"]] if row["site"] else -1)


def norms():
    rng = np.random.default_rng(4)
    scale, bias = rng.normal(size=(2, 5, WIDTH))
    rms, none = [Norm("rms", 1e-2, scale[index], np.zeros(WIDTH)) for index in (0, 1)]
    centred, around, last = [Norm("layer", 1e-2, scale[index], bias[index]) for index in (2, 3, 4)]
    pre, mid = Site.RESID_PRE, Site.RESID_MID
    return [
        NormLayer("attention", 0, rms, (pre,), 0),
        NormLayer("mlp_output", 0, none),  # nothing of it was captured
        NormLayer("mlp", 1, centred, (mid,), 1),
        NormLayer("attention_output", 1, around, (mid,), 1, reads=False),
        NormLayer("mlp_output", 2, around, (pre, mid), 2),  # it reads a sum
        NormLayer("final", -1, last, (Site.RESID_FINAL,)),
    ]
