"""Sentences and the map of the cosines between the directions of several contrasts."""

import numpy as np
import pytest
from support.finished_runs import cached_run

from theodolite.groups.directions.sections import sections

SETS = ("harmful", "harmless", "french", "english")
CONTRASTS = {
    "refusal": {"positive": "harmful", "negative": "harmless", "paired": False},
    "language": {"positive": "french", "negative": "english", "paired": False},
    "other": {"positive": "french", "negative": "harmless", "paired": False},
}
COSINES = np.array([[1.0, 0.25, np.nan], [0.25, 1.0, -0.5], [np.nan, -0.5, 1.0]])
Z = np.array([[np.nan, 4.0, np.nan], [4.0, np.nan, np.nan], [np.nan] * 3])
AUROC = np.array([[0.5, 0.6, 0.7, 0.6], [0.6, 0.6, 0.95, 0.6]])  # (site, layer)


def at_places(values):
    """Return (contrast, contrast_other, site, position, layer) with the values at layer 2 mid, and 0.1 elsewhere."""
    full = np.full((3, 3, 2, 1, 4), 0.1)
    full[:, :, 1, 0, 2] = values
    return full


@pytest.fixture
def made(tmp_path):
    def made(contrasts=CONTRASTS, **changed):
        names = [*contrasts]
        some = np.ix_(*[[[*CONTRASTS].index(name) for name in names]] * 2)
        groups = {
            "curves": {},
            "separation": {"auroc": {"value": AUROC[:, None]}},
            "directions": {"contrast_cosine": at_places(COSINES)[some]},
            "permutations": {"contrast_cosine_null": {"mean": 0.01, "sd": 0.06, "z": at_places(Z)[some]}},
        }
        run = cached_run(tmp_path, groups | changed, contrasts=contrasts)
        return [section for section in sections(run) if section.title.startswith("Directions of")]

    return made


def test_the_section_states_the_most_similar_directions_where_the_sets_are_separated_best(made):
    (section,) = made()
    assert section.title == "Directions of 3 contrasts at position -1, layer 2 mid"
    assert section.headline == "At layer 2 mid, the most similar directions are “language” and “other”: cosine -0.50."
    assert section.facts == [
        "Largest absolute cosine between the directions of two contrasts at layer 2 mid: -0.50, of “language” and "
        "“other” (2 pairs).",
        "1 of 1 cosines between contrasts without a common set differ from independently permuted labels by 3 standard "
        "deviations or more. The largest |z| is that of “refusal” and “language” (cosine 0.25; permuted labels give "
        "0.01 ± 0.06, z = 4.0).",
    ]
    assert any(note.startswith("1 of 2 pairs of contrasts share a prompt set.") for note in section.notes)


def test_the_map_marks_cosines_that_differ_from_permuted_labels(made):
    (section,) = made()
    (figure,) = section.maps
    (cells,) = figure.draw().data
    assert list(map(list, cells.text)) == [["1.00", "0.25 •", ""], ["0.25 •", "1.00", "-0.50"], ["", "-0.50", "1.00"]]
    assert (cells.zmin, cells.zmax) == (-0.5, 0.5)  # without the diagonal
    assert cells.customdata[0][1] == ", permuted labels 0.010 ± 0.060, z = 4.0"
    assert cells.customdata[1][2] == ""


def test_without_permutations_the_map_has_no_marks(made, tmp_path):
    groups = {"curves": {}, "directions": {"contrast_cosine": at_places(COSINES)}}
    run = cached_run(tmp_path / "other", groups, contrasts=CONTRASTS)
    (section,) = [one for one in sections(run) if one.title.startswith("Directions of")]
    assert section.title.endswith("layer 3 mid")  # the last depth
    assert len(section.facts) == 1
    (cells,) = section.maps[0].draw().data
    assert "•" not in str(cells.text)


def test_one_contrast_has_no_section(made):
    assert made({"refusal": CONTRASTS["refusal"]}) == []


def test_texts_without_a_test_have_no_nan(made):
    nothing = {"contrast_cosine_null": {"mean": np.nan, "sd": np.nan, "z": np.nan}}
    (section,) = made(permutations=nothing)
    assert section.facts[1] == "No pair of contrasts without a common set can be compared with permuted labels."
    texts = [section.headline, section.title, *section.facts, *section.notes, section.maps[0].draw().to_json()]
    assert "nan" not in " ".join(texts).lower()
