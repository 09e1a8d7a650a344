"""Read adapter_config.json, and refuse by name what a merge into the base's matrices cannot express."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.convert.files import read_json

RULE = 1
"""Version of the rules that merge. Raise it if a changed rule gives other numbers."""

MERGED_KEY = "merged_adapter"
"""The entry of a merged checkpoint's configuration that says what the adapter changed."""

SETTINGS = "adapter_config.json"
"""The file that makes a folder an adapter of the library peft."""

TENSORS = "adapter_model.safetensors"
"""The file of the adapter's tensors."""

_SHOWN = 80  # characters of a value in a message

# Weights that are merged into matrices are the same for every token of every prompt, and peft draws no others.
_REFUSED = {
    "alora_invocation_tokens": "acts only after these tokens, so it is no change of a matrix",
    "arrow_config": "chooses among adapters for each token, so it is no change of a matrix",
    "kasa_config": "also changes the base",
    "layer_replication": "repeats layers, so the model has another number of layers than its base",
    "lora_bias": "adds a bias to each pair of matrices",
    "megatron_config": "is for models of Megatron",
    "monteclora_config": "draws the adapter at random for each prompt",
    "use_bdlora": "stores matrices in blocks",
    "use_qalora": "pools the inputs of quantised matrices",
    "velora_config": "is a variant of LoRA that is not read",
}
# How training began. With all others, it also changed the base.
_STARTS: tuple[object, ...] = (True, False, "gaussian", "orthogonal", "eva")

# peft reads these only while it trains; null and false are the values of options that are off.
_WITHOUT_EFFECT = (
    "auto_mapping",
    "base_model_class",
    "peft_version",
    "inference_mode",
    "runtime_config",
    "lora_dropout",
)
_OFF: tuple[object, ...] = (None, False, {}, [])

_Names = list[str] | str | None
_Tokens = list[Annotated[int, Field(ge=0)]]


class AdapterConfig(BaseModel):
    """The settings of an adapter that a merge reads, with their types; the names are those of peft's LoraConfig."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1, le=2**16)]
    lora_alpha: int | float
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    target_modules: _Names = None
    exclude_modules: _Names = None
    target_parameters: list[str] | None = None
    modules_to_save: list[str] | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: _Names = None
    rank_pattern: dict[str, Annotated[int, Field(ge=1, le=2**16)]] = Field(default_factory=dict)
    alpha_pattern: dict[str, int | float] = Field(default_factory=dict)
    trainable_token_indices: _Tokens | dict[str, _Tokens] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    fan_in_fan_out: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    ensure_weight_tying: bool = False

    @property
    def method(self) -> str:
        """The kind of the adapter, in words."""
        kind = "DoRA" if self.use_dora else "LoRA"
        return f"{kind}, rank-stabilised" if self.use_rslora else kind


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, perhaps beside its base."""
    return (folder / SETTINGS).is_file()


def check_tensors(folder: Path) -> None:
    """Raise ModelError if a folder has no tensors of an adapter as safetensors."""
    if not (folder / TENSORS).is_file():
        pickled = sorted(path.name for path in folder.glob("adapter_model.*"))
        found = f"it has {pickled[0]}, and pickles can run code; save the adapter" if pickled else "save the adapter"
        raise ModelError(f"the adapter {folder} has no {TENSORS}; {found} with safetensors")


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Return the settings of the adapter in a folder.

    Raises:
        ModelError: the file cannot be read, or a setting has a wrong type or value.
        UnsupportedModelError: the adapter is no LoRA, or has a setting that cannot be merged or is not known.
    """
    file = folder / SETTINGS
    raw = read_json(file)
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(
            f"{file}: peft_type is {_shown(kind)}; allowed: LORA (with DoRA or rank stabilisation); merge the adapter "
            "into its base with peft, and survey the merged model"
        )
    for name, reason in _REFUSED.items():
        if raw.get(name) not in (None, False):
            raise _refused(file, name, raw[name], reason)
    start = raw.get("init_lora_weights", True)
    if not any(start is one or (isinstance(start, str) and start == one) for one in _STARTS):
        raise _refused(
            file, "init_lora_weights", start, "changed the base before training; save it with peft's option "
            "path_initial_model_for_weight_conversion as an adapter of the unchanged base"
        )  # fmt: skip
    unknown = sorted(name for name in raw.keys() - _known() if raw[name] not in _OFF)
    if unknown:
        raise _refused(file, unknown[0], raw[unknown[0]], "is not known here, so it may change what the adapter does")
    try:
        return AdapterConfig.model_validate({name: raw[name] for name in raw.keys() & AdapterConfig.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise ModelError(f"{file} lacks {where}; use the file that peft has saved") from error
        message = first["msg"].removeprefix("Input should be ")
        raise ModelError(f"{file}: {where} is {_shown(first['input'])}; allowed: {message}") from error


def _refused(file: Path, name: str, value: object, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{file}: {name} is {_shown(value)}, which {reason}; an adapter with it cannot be merged: merge it with peft "
        "where that is possible, and survey the merged model"
    )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _known() -> set[str]:
    """Return the names of peft's settings for LoRA; those that are neither refused nor read have no effect here."""
    from dataclasses import fields

    from peft import LoraConfig

    return {one.name for one in fields(LoraConfig)} | set(_WITHOUT_EFFECT)


def peft_config(settings: AdapterConfig) -> Any:
    """Return the settings as peft's LoraConfig; raises what peft raises for settings that contradict each other."""
    from peft import LoraConfig

    given = settings.model_dump(exclude={"peft_type", "base_model_name_or_path", "revision"}, exclude_none=True)
    return LoraConfig(**given)


def merged_adapter(config: Any) -> dict[str, Any] | None:
    """Return what a merged adapter changed, from the configuration of the merged checkpoint; None without one."""
    facts = getattr(config, MERGED_KEY, None)
    return None if facts is None else dict(facts)


def merge_versions() -> dict[str, str]:
    """Return the versions on which merged weights depend, by the name of the library or of the rule."""
    return {"adapter_merge": f"rule{RULE}", "peft": version("peft")}
