import mpmath
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from theodolite_jobs.groups.sphere.formulas import (
    gaussian_spread,
    gaussian_squared_spread,
    length_variance_share,
    scale_radii,
    semi_axes,
)
from theodolite_jobs.statistics.norm_quantities import QUANTITIES, input_quantities, output_quantities
from theodolite_jobs.statistics.norms import Norm, normalised, projected

WIDTH, EPSILON = 48, 1e-3  # so large an ε that it shows beside inputs of length 1


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def inputs():
    """Vectors of lengths from far below √ε to far above it, off the plane of mean 0."""
    return (random(12, WIDTH) + 0.5) * np.geomspace(1e-4, 1e3, 12)[:, None]


def scale_and_bias(seed=1):
    scale, bias = random(2, WIDTH, seed=seed)
    return scale, bias  # of both signs


def tensor(array):
    return torch.from_numpy(np.array(array))


def torch_layer_norm():
    scale, bias = scale_and_bias()
    module = torch.nn.LayerNorm(WIDTH, eps=EPSILON, dtype=torch.float64)
    module.load_state_dict({"weight": tensor(scale), "bias": tensor(bias)})
    return module, Norm("layer", EPSILON, scale, bias)


def torch_layer_norm_without_bias():
    scale, _ = scale_and_bias()
    module = torch.nn.LayerNorm(WIDTH, eps=EPSILON, bias=False, dtype=torch.float64)
    module.load_state_dict({"weight": tensor(scale)})
    return module, Norm("layer", EPSILON, scale, np.zeros(WIDTH))


def torch_rms_norm():
    scale, _ = scale_and_bias()
    module = torch.nn.RMSNorm(WIDTH, eps=EPSILON, dtype=torch.float64)
    module.load_state_dict({"weight": tensor(scale)})
    return module, Norm("rms", EPSILON, scale, np.zeros(WIDTH))


def llama():
    scale, _ = scale_and_bias()
    module = LlamaRMSNorm(WIDTH, eps=EPSILON).double()
    module.load_state_dict({"weight": tensor(scale)})
    return module, Norm("rms", EPSILON, scale, np.zeros(WIDTH))


def gemma():
    stored, _ = scale_and_bias()
    module = GemmaRMSNorm(WIDTH, eps=EPSILON).double()
    module.load_state_dict({"weight": tensor(stored)})
    return module, Norm("rms", EPSILON, 1 + stored, np.zeros(WIDTH))


def olmo():
    return OlmoLayerNorm(WIDTH).double(), Norm("layer", 1e-5, np.ones(WIDTH), np.zeros(WIDTH))


def bert():
    scale, bias = scale_and_bias()
    module = torch.nn.LayerNorm(WIDTH, eps=1e-12, dtype=torch.float64)  # as transformers' BERT makes it
    module.load_state_dict({"weight": tensor(scale), "bias": tensor(bias)})
    return module, Norm("layer", 1e-12, scale, bias)


# Hugging Face's own modules compute in float32 whatever comes in.
MODULES = {
    torch_layer_norm: 1e-11,
    torch_layer_norm_without_bias: 1e-11,
    torch_rms_norm: 1e-11,
    llama: 2e-6,
    gemma: 2e-6,
    olmo: 2e-6,
    bert: 1e-11,
}


def named(columns):
    return dict(zip(QUANTITIES, columns.T, strict=True))


@each("make", list(MODULES))
def test_quantities_of_inputs_are_those_of_the_modules_outputs(make):
    module, norm = make()
    x, tolerance = inputs(), MODULES[make]
    with torch.no_grad():
        y = module(tensor(x)).double().numpy()
    outputs = (y - norm.bias) / norm.scale  # the module's own, before its scale and bias
    lengths, after = np.linalg.norm(x, axis=1), np.linalg.norm(outputs, axis=1)
    square = x.var(axis=1) if norm.kind == "layer" else np.mean(x**2, axis=1)
    found = named(input_quantities(x, norm))
    np.testing.assert_allclose(found["norm_before"], lengths, rtol=1e-14)
    np.testing.assert_allclose(found["squared_norm_before"], lengths**2, rtol=1e-14)
    cosine = np.abs(x @ np.ones(WIDTH)) / lengths / np.sqrt(WIDTH)
    np.testing.assert_allclose(found["component_before"], cosine, rtol=1e-12)
    np.testing.assert_allclose(found["norm_after"], after, rtol=tolerance)
    expected = np.sqrt(WIDTH * square / (square + norm.epsilon))
    np.testing.assert_allclose(found["expected"], expected, rtol=1e-14)
    np.testing.assert_allclose(expected, after, rtol=tolerance)  # the formula itself, ε inside the root
    np.testing.assert_allclose(found["deviation"], 0, atol=1e-14)
    component = np.abs(outputs @ np.ones(WIDTH)) / after / np.sqrt(WIDTH)
    np.testing.assert_allclose(found["component_after"], component, atol=tolerance)
    np.testing.assert_allclose(found["residual"], np.abs(after / np.sqrt(WIDTH) - 1), atol=tolerance)
    if norm.kind == "layer":
        assert (found["component_after"] < 1e-12).all()
    if norm.epsilon == EPSILON:
        assert found["residual"][0] > 0.5  # ε shows
    np.testing.assert_allclose(normalised(x, norm), y, rtol=1e-5, atol=tolerance)


@each("make", list(MODULES))
def test_quantities_of_outputs_equal_those_of_inputs(make):
    (_, norm), x = make(), inputs()
    from_inputs, from_outputs = named(input_quantities(x, norm)), named(output_quantities(normalised(x, norm), norm))
    for name in QUANTITIES:
        if name in ("norm_after", "component_after", "residual"):
            # (y − β)/γ loses what β is larger than γŷ; the least |γ| here is a hundredth of the largest |β|.
            np.testing.assert_allclose(from_outputs[name], from_inputs[name], rtol=1e-8, atol=1e-10)
        else:
            assert np.isnan(from_outputs[name]).all()


def test_quantities_of_outputs_are_nan_if_a_scale_is_zero():
    scale, bias = scale_and_bias()
    scale[7] = 0
    norm = Norm("layer", EPSILON, scale, bias)
    assert np.isnan(output_quantities(normalised(inputs(), norm), norm)).all()
    assert np.isfinite(input_quantities(inputs(), norm)[:, :7]).all()


def test_ratios_of_zero_vectors_are_nan():
    layer, rms = (Norm(kind, EPSILON, np.ones(WIDTH), np.zeros(WIDTH)) for kind in ("layer", "rms"))
    zero, constant = (
        named(input_quantities(np.zeros((1, WIDTH)), rms)),
        named(input_quantities(np.full((1, WIDTH), 3.0), layer)),
    )
    for found in (zero, constant):
        assert (found["norm_after"], found["expected"], found["residual"]) == (0, 0, 1)
        assert np.isnan([found["deviation"], found["component_after"]]).all()
    assert np.isnan(zero["component_before"])
    np.testing.assert_allclose(constant["component_before"], 1, rtol=1e-14)
    np.testing.assert_allclose(constant["norm_before"], 3 * np.sqrt(WIDTH), rtol=1e-14)


@given(st.integers(0, 1000), st.integers(-30, 30), st.sampled_from(["rms", "layer"]))
@settings(deadline=None)
def test_a_scaled_input_under_a_scaled_epsilon_gives_the_same_output(seed, exponent, kind):
    x, factor = random(5, WIDTH, seed=seed), 2.0**exponent
    plain = named(input_quantities(x, Norm(kind, EPSILON, np.ones(WIDTH), np.zeros(WIDTH))))
    scaled = named(input_quantities(x * factor, Norm(kind, EPSILON * factor**2, np.ones(WIDTH), np.zeros(WIDTH))))
    for name in QUANTITIES[2:]:
        np.testing.assert_array_equal(scaled[name], plain[name])
    np.testing.assert_array_equal(scaled["norm_before"], plain["norm_before"] * factor)


def test_an_output_that_is_not_the_norms_own_deviates():
    norm = Norm("rms", EPSILON, np.ones(WIDTH), np.zeros(WIDTH))
    doubled = named(output_quantities(2 * normalised(inputs()[-1:], norm), norm))
    np.testing.assert_allclose(doubled["residual"], 1, rtol=1e-6)


def test_subtracting_the_mean_is_an_orthogonal_projection():
    norm = Norm("layer", EPSILON, np.ones(WIDTH), np.zeros(WIDTH))
    matrix = projected(np.eye(WIDTH), norm)
    np.testing.assert_allclose(matrix, np.eye(WIDTH) - 1 / WIDTH, atol=1e-15)
    np.testing.assert_allclose(matrix @ matrix, matrix, atol=1e-15)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    np.testing.assert_allclose(projected(inputs(), norm).sum(axis=1) / np.linalg.norm(inputs(), axis=1), 0, atol=1e-14)
    np.testing.assert_array_equal(projected(inputs(), Norm("rms", EPSILON, np.ones(WIDTH), np.zeros(WIDTH))), inputs())


SCALES = {
    "both signs": lambda d: random(d),
    "all ones": lambda d: np.ones(d),
    "ties": lambda d: np.round(random(d), 1) + 0.05,
    "ties of both signs": lambda d: np.where(random(d) > 0, 1.0, -1.0) * (1 + np.arange(d) // 7),
    "one zero": lambda d: np.where(np.arange(d) == 5, 0.0, random(d)),
    "zeros": lambda d: np.where(np.arange(d) % 4 == 1, 0.0, random(d)),
    "all but one zero": lambda d: np.where(np.arange(d) == 5, 2.0, 0.0),
    "rogue": lambda d: np.where(np.arange(d) == 9, 300.0, 1 + 0.01 * random(d)),
    "graded": lambda d: np.geomspace(1e-6, 1e2, d),
    "bfloat16": lambda d: torch.from_numpy(1 + 0.1 * random(d)).bfloat16().double().numpy(),
    "nearly tied": lambda d: 1 + 1e-15 * np.arange(d),
}


def layer_norm(scale, bias=None, epsilon=0.0):
    return Norm("layer", epsilon, scale, np.zeros(len(scale)) if bias is None else bias)


def dense(scale):
    """diag(γ)Πdiag(γ)."""
    centring = np.eye(len(scale)) - 1 / len(scale)
    return scale[:, None] * centring * scale


@each("d", [2, 48, 300])
@each("kind", [kind for kind in SCALES])
def test_semi_axes_are_those_of_the_dense_matrix(kind, d):
    scale = SCALES[kind](d) if d > 9 else np.array([0.5, -2.0])
    axes, expected = semi_axes(layer_norm(scale)), np.linalg.eigvalsh(dense(scale))[::-1]
    assert axes.shape == (d,)
    assert axes[-1] == 0  # the outputs lie in a plane
    assert (np.diff(axes) <= 0).all()
    # A dense eigenvalue is as good as the largest one's rounding.
    np.testing.assert_allclose(axes**2 / d, expected, atol=1e-14 * d**0.5 * (scale**2).max(), rtol=0)
    np.testing.assert_allclose((axes**2).sum(), (d - 1) * (scale**2).sum(), rtol=1e-12)  # the trace
    radii = np.sort(np.sqrt(d) * np.abs(scale))[::-1]
    np.testing.assert_allclose(scale_radii(layer_norm(scale)), radii, rtol=1e-15)
    assert (axes[:-1] <= radii[:-1] * (1 + 1e-15)).all()  # they interlace
    assert (axes[:-1] >= radii[1:] * (1 - 1e-15)).all()


@given(st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, 1.0001, -3.0]) | st.floats(-4, 4), min_size=2, max_size=12))
@settings(deadline=None)
def test_semi_axes_are_those_of_the_dense_matrix_for_any_scale(scale):
    scale = np.array(scale)
    expected = np.linalg.eigvalsh(dense(scale))[::-1]
    tolerance = 1e-14 * max((scale**2).max(), 1e-300)
    np.testing.assert_allclose(semi_axes(layer_norm(scale)) ** 2 / len(scale), expected, atol=tolerance, rtol=0)


def test_small_axes_have_a_small_relative_error_beside_large_ones():
    """A dense float64 decomposition loses them; one of 60 digits does not."""
    scale = np.array([1e-5, 3e-5, -2e-3, 0.7, 40.0, 41.0])
    with mpmath.workdps(60):
        matrix = mpmath.matrix(6, 6)
        for row, column in np.ndindex(6, 6):
            centring = (1 if row == column else 0) - mpmath.mpf(1) / 6
            matrix[row, column] = mpmath.mpf(float(scale[row])) * centring * mpmath.mpf(float(scale[column]))
        values = sorted(mpmath.eigsy(matrix, eigvals_only=True), reverse=True)[:5]
        expected = [float(mpmath.sqrt(6 * value)) for value in values]
    np.testing.assert_allclose(semi_axes(layer_norm(scale))[:5], expected, rtol=1e-12)


def test_all_axes_of_an_rms_norm_are_its_scale():
    scale = SCALES["zeros"](WIDTH)
    expected = np.sort(np.abs(scale))[::-1] * np.sqrt(WIDTH)
    np.testing.assert_allclose(semi_axes(Norm("rms", EPSILON, scale, np.zeros(WIDTH))), expected, rtol=1e-15)


@each("kind", ["both signs", "ties", "rogue", "bfloat16"])
def test_outputs_lie_on_the_ellipsoid_of_these_axes_as_epsilon_vanishes_and_inside_otherwise(kind):
    scale, bias = SCALES[kind](WIDTH), scale_and_bias()[1]
    values, vectors = np.linalg.eigh(dense(scale))
    axes, directions = semi_axes(layer_norm(scale))[:-1], vectors[:, :0:-1]
    for epsilon in (1e-30, EPSILON):
        norm = layer_norm(scale, bias, epsilon)
        outputs = normalised(random(40, WIDTH), norm) - bias
        np.testing.assert_allclose(outputs / scale @ np.ones(WIDTH), 0, atol=1e-11)  # the plane
        equation = ((outputs @ directions / axes) ** 2).sum(axis=1)
        if epsilon == 1e-30:
            np.testing.assert_allclose(equation, 1, rtol=1e-10)
        else:
            assert (equation < 1).all()
            residual = named(input_quantities(random(40, WIDTH), norm))["residual"]
            np.testing.assert_allclose(np.abs(np.sqrt(equation) - 1), residual, rtol=1e-6)
    # The two-way claim of the sources, √d|γ| for a layer norm, is off.
    assert np.abs(axes / scale_radii(layer_norm(scale))[:-1] - 1).max() > 1e-4
    assert values[0] < 1e-12


@each("d, plain, squared", [(768, 2.552, 5.103), (1000, 2.236, 4.472), (4096, 1.105, 2.210), (5120, 0.988, 1.976)])
def test_spreads_of_a_gaussian_are_those_of_the_table(d, plain, squared):
    """In percent, rounded to three decimals."""
    assert abs(100 * gaussian_spread(d) - plain) <= 5e-4
    assert abs(100 * gaussian_squared_spread(d) - squared) <= 5e-4


@each("d", [1, 2, 47, 576, 4095, 16384])
def test_the_spread_of_a_gaussian_equals_its_formula_in_60_digits(d):
    with mpmath.workdps(60):
        mean = mpmath.sqrt(2) * mpmath.gamma(mpmath.mpf(d + 1) / 2) / mpmath.gamma(mpmath.mpf(d) / 2)
        expected = float(mpmath.sqrt(d - mean**2) / mean)
    # d − mean² is 1/2 at any d: float64 keeps it to about 4d·1e-16, and the logarithms of Γ to some hundred times that.
    assert abs(gaussian_spread(d) / expected - 1) < 1e-6


def test_the_spread_of_a_gaussian_is_that_of_draws():
    norms = np.linalg.norm(random(100_000, 24), axis=1)
    # the standard deviation of 100,000 draws scatters by 0.2 %, its square's by as much
    np.testing.assert_allclose(norms.std() / norms.mean(), gaussian_spread(24), rtol=0.01)
    np.testing.assert_allclose((norms**2).std() / (norms**2).mean(), gaussian_squared_spread(24), rtol=0.015)


def squares(x):
    return np.square(x - x.mean(axis=0)).sum(axis=0)


@given(st.integers(0, 1000), st.integers(2, 30), st.floats(-3, 3))
@settings(deadline=None)
def test_the_share_of_length_equals_its_definition_and_the_rest_is_direction(seed, n, offset):
    x = random(n, 7, seed=seed) * np.random.default_rng(seed).gamma(2, size=(n, 1)) + offset
    norms = np.linalg.norm(x, axis=1)
    share = length_variance_share(np.array(squares(norms)), squares(x))
    whole = np.trace(np.cov(x.T))
    np.testing.assert_allclose(share, norms.var(ddof=1) / whole, rtol=1e-10)
    turning = (norms.mean() ** 2 - np.square(x.mean(axis=0)).sum()) * n / (n - 1)
    np.testing.assert_allclose(share * whole + turning, whole, rtol=1e-9)
    assert 0 <= share <= 1 + 1e-12


def test_the_share_of_length_is_one_on_a_ray_zero_on_a_sphere_and_nan_for_one_point():
    ray = np.outer(np.arange(1.0, 6), random(9))
    turned = random(50, 9)
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    shares = [
        length_variance_share(np.array(squares(np.linalg.norm(x, axis=1))), squares(x))
        for x in (ray, turned, np.tile(ray[:1], (4, 1)))
    ]
    np.testing.assert_allclose(shares[:2], [1, 0], atol=1e-14)
    assert np.isnan(shares[2])
