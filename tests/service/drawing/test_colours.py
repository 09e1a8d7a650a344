"""A colour has one meaning in all figures, and readers with any colour vision can read it on light and dark pages."""

from itertools import combinations

import numpy as np
from support.each import each
from support.finished_runs import finished_run

from theodolite.drawing.style import MAIN, PLAIN, SECOND, THIRD, set_colours, symbol_of
from theodolite.groups.curves.figures import ContrastView, contrast_figure
from theodolite.sections.parts import colours_of
from theodolite.store.result_reader import read_group

SETS = list(set_colours([f"set {index}" for index in range(6)], {}).values())
STATISTICS = [MAIN, SECOND, THIRD]

# Machado, Oliveira and Fernandes (2009), complete absence of one kind of cones.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)
CURVES = {
    "cosine_of_means": 0.9,
    "cosine_of_means_debiased": {"value": 0.95},
    "variance_mean": 2.0,
    "variance_max": 50.0,
}


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light):
    ratio = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(one, other):
    darker, lighter = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@each("paper", ["#ffffff", "#1a1e25"])
def test_each_colour_is_readable_on_light_and_dark_pages(paper):
    assert min(contrast(colour, paper) for colour in [*SETS, *STATISTICS, PLAIN]) >= 3


def test_no_colour_of_a_set_is_a_colour_of_a_statistic():
    colours = [*SETS, *STATISTICS, PLAIN]
    assert len(set(colours)) == len(colours)
    assert min(np.linalg.norm(lab(linear(a)) - lab(linear(b))) for a, b in combinations(colours, 2)) > 20


@each("vision", VISION)
@each("scale", [SETS[:3], STATISTICS])
def test_any_colour_vision_distinguishes_the_first_colours_of_a_scale(scale, vision):
    seen = [lab(np.asarray(VISION[vision]) @ linear(colour)) for colour in scale]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 12


def test_each_set_has_a_marker_of_its_own():
    assert len({symbol_of(colour) for colour in SETS}) == len(SETS)


def test_a_set_has_the_same_colour_in_each_contrast_and_group(tmp_path):
    contrasts = {
        "refusal": {"positive": "harmful", "negative": "harmless", "paired": True},
        "reversed": {"positive": "harmless", "negative": "harmful", "paired": True},
    }
    run = finished_run(tmp_path, {"curves": CURVES, "gram": {}}, contrasts=contrasts)
    curves = read_group(run, "curves")
    drawn = []
    for name, sides in contrasts.items():
        figure = contrast_figure(curves, ContrastView(name, sides["positive"], sides["negative"], -1))
        drawn.append({trace.name: trace.line.color for trace in figure.data if trace.name in sides.values()})
    assert drawn[0] == drawn[1] == {"harmful": SETS[0], "harmless": SETS[1]}
    assert colours_of(run, read_group(run, "gram")).items() <= drawn[0].items()
