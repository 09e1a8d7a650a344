"""The supported families, sites, layers and context lengths."""

from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.errors import only_line
from transformers import LlamaConfig, LongT5Config, MambaConfig, XLNetConfig

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec_file import parse_spec
from theodolite_jobs.models.anatomy import check_layers, check_sites, dimensions_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config


@each("config", [LongT5Config(), MambaConfig()])
def test_an_unsupported_family_stops_the_preparation(tmp_path: Path, config: Any) -> None:
    from theodolite_jobs.prepare import prepare

    config.save_pretrained(tmp_path / "model")
    spec = parse_spec({"model": {"id": "model"}, "prompts": {"nouns": {"source": "builtin:nouns"}}})
    with pytest.raises(
        UnsupportedModelError, match=f"'{config.model_type}' (has two residual streams|is not a supported transformer)"
    ):
        prepare(spec, tmp_path, Settings(cache=tmp_path / "cache"))


def test_a_missing_site_is_refused_with_the_reason_and_a_list_of_sites(folder: Path) -> None:
    with pytest.raises(SiteNotFoundError) as caught:
        check_sites(known_anatomy(load_config(folder)), [Site.RESID_PRE, Site.RESID_MID_SUM])
    assert "capture.sites: this model has no resid_mid_sum: only a model whose norms follow" in only_line(caught)
    assert "it has resid_pre, resid_mid, resid_post, head_out, attn_out, mlp_out" in only_line(caught)


@each(
    "rotary, length",
    [
        ({"rope_type": "default"}, 100),
        ({"rope_type": "linear", "factor": 4.0}, 400),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}, 200),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 50}, 100),
    ],
)
def test_rotary_scaling_extends_the_context_length(rotary: dict[str, Any], length: int) -> None:
    config = LlamaConfig(max_position_embeddings=100)
    config.rope_parameters = {"rope_theta": 10000.0, **rotary}
    assert dimensions_of(config).context_length == length


def test_a_negative_length_is_a_context_without_a_limit() -> None:
    assert XLNetConfig().max_position_embeddings == -1
    assert dimensions_of(XLNetConfig()).context_length > 10**9


def test_a_layer_out_of_range_is_refused_with_the_range(folder: Path) -> None:
    dimensions = dimensions_of(load_config(folder))
    check_layers(dimensions, [0, 2])
    with pytest.raises(SiteNotFoundError, match=r"capture\.layers: this model has no layer 3; it has 0 to 2"):
        check_layers(dimensions, [0, 3])
