"""Loading configuration, tokenizer and the base model (without its language-model head) from a folder."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.anatomy import Anatomy, Dimensions, dimensions_of
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.probe import probe_anatomy
from theodolite_jobs.models.sharding import check_shardable
from theodolite_jobs.models.tensors import TensorFiles

# A tensor of a block; not the constants that older libraries stored beside them, nor a server's scales of its cache.
_CONSTANTS = r"inv_freq|masked_bias|causal_mask|cos_cached|sin_cached|\.attn\.bias|\.attention\.bias|\.[kv]_scale"
_IN_A_BLOCK = re.compile(rf"\b(layers?|h)\.\d+(?!.*({_CONSTANTS})$)\.")

_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json", "*.tiktoken")


@dataclass(frozen=True)
class LoadedModel:
    """A base model in memory, and where its parts are.

    Attributes:
        module: the base model.
        anatomy: its family's record.
        dimensions: its sizes.
        ranks: processes that share it; each holds a part of every matrix, and the whole residual stream.
        reload: `load_model` with its folder, for what cannot be copied from parts.
    """

    module: Any
    anatomy: Anatomy
    dimensions: Dimensions
    ranks: int = 1
    reload: Callable[..., "LoadedModel"] | None = None

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.module.config

    @property
    def blocks(self) -> Any:
        """The blocks, in order."""
        return self.module.get_submodule(self.anatomy.blocks)

    @property
    def device(self) -> Any:
        """Where the embedding lies, and so where token ids go."""
        return self.module.get_input_embeddings().weight.device

    @property
    def dtype(self) -> Any:
        """The arithmetic's dtype."""
        return self.module.dtype

    def run(self, **inputs: Any) -> Any:
        """Run the base model; rotary positions that grow with the longest prompt they saw forget it first."""
        for module, prefix in self._growing:
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
            device = getattr(module, f"{prefix}inv_freq").device
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(device))
        return self.module(**inputs)

    @cached_property
    def _growing(self) -> list[tuple[Any, str]]:
        """The rotary modules of the `dynamic` kind, each with what its attributes begin with."""
        found = []
        for module in self.module.modules():
            kinds = getattr(module, "rope_type", None)
            for layer_type, kind in (kinds if isinstance(kinds, dict) else {"": str(kinds)}).items():
                if "dynamic" in kind:
                    found.append((module, f"{layer_type}_" if layer_type else ""))
        return found


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal: programs read our output."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def load_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """Load a model's configuration; raises ModelError, also where only code of its own could read it."""
    from transformers import CONFIG_MAPPING, AutoConfig

    raw = read_json(folder / "config.json")
    if "auto_map" in raw and raw.get("model_type") not in CONFIG_MAPPING and not trust_remote_code:
        raise ModelError(
            f"{folder} brings its own code, for transformers does not know {raw.get('model_type')!r}: "
            "it needs trust_remote_code, which a deployment allows by name in THEODOLITE_REMOTE_CODE_ALLOWED"
        )
    return _load(AutoConfig, folder, "configuration", trust_remote_code=trust_remote_code)


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """Load a model's tokenizer; raises ModelError."""
    from transformers import AutoTokenizer

    if not any(path for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        # transformers would make an empty one, which knows no words.
        raise ModelError(f"{folder} has no tokenizer: none of {', '.join(_VOCABULARIES)}")
    return _load(AutoTokenizer, folder, "tokenizer", trust_remote_code=trust_remote_code)


def load_model(
    folder: Path,
    *,
    dtype: str = "auto",
    attention: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    ranks: int = 1,
    blocks: int | None = None,
) -> LoadedModel:
    """Load the base model for inference, from safetensors only.

    Args:
        folder: configuration and weights.
        dtype: `auto` is the checkpoint's own.
        attention: `auto` is what transformers selects for the family.
        device_map: a device such as `cuda`, `auto` to spread blocks over several GPUs, or None for the CPU.
        trust_remote_code: run the checkpoint's own code.
        ranks: processes that load it together, a part of every matrix each, on the device of each; they have met in
            torch.distributed, and every later run of the model is one of all of them.
        blocks: leave out the blocks after so many first ones; None is all.

    Raises:
        ModelError: a weight is missing or unreadable, or there are no safetensors weights.
        UnsupportedModelError: the family is unknown, or cannot be cut over so many ranks.
    """
    from transformers import AutoModel, DistributedConfig

    config = load_config(folder, trust_remote_code)
    if ranks > 1:
        check_shardable(config, ranks)
    if blocks is not None:
        for one in (config, config.get_text_config()):
            one.num_hidden_layers = blocks
    anatomy = known_anatomy(config)
    TensorFiles(folder)  # opens every file, so that a broken or missing one is named
    method = quantisation(config)
    hint = f"quantised ({method}; without the kernels it needs, give the checkpoint it was made from) "
    what = f"{hint if method else ''}weights"
    module, report = _load(
        AutoModel,
        folder,
        what,
        config=config,
        dtype=resolved_dtype(config, dtype),
        attn_implementation=None if attention == "auto" else attention,
        device_map=device_map,
        distributed_config=DistributedConfig(tp_size=ranks) if ranks > 1 else None,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # reported below, with their names
        output_loading_info=True,
        trust_remote_code=trust_remote_code,
        **(anatomy.load_options if anatomy else {}),
    )
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills them with random numbers and only warns.
        raise ModelError(f"the weights in {folder} lack {len(missing)} tensors, the first is {missing[0]}")
    unused = sorted(key for key in report["unexpected_keys"] if _IN_A_BLOCK.search(key))
    if unused and blocks is None:
        # They would be left out: a bias that the configuration does without, or blocks past its last.
        raise ModelError(
            f"the weights in {folder} hold {len(unused)} tensors in blocks that the configuration does not use, the "
            f"first is {unused[0]}; weights and config.json do not belong together"
        )
    wrong = sorted(report["mismatched_keys"])
    if wrong:
        raise ModelError(f"the weights in {folder} do not fit the configuration: {wrong[0][0]} has {wrong[0][1]}")
    reload = partial(load_model, folder, attention=attention, trust_remote_code=trust_remote_code)
    return replace(wrap(module), ranks=ranks, reload=reload)


def wrap(module: Any, anatomy: Anatomy | None = None) -> LoadedModel:
    """Make a base model that is already in memory ready for capture; a family that is not in the table is probed.

    Raises:
        UnsupportedModelError: a probe of the family's blocks fails.
    """
    module = module.eval().requires_grad_(False)
    anatomy = anatomy or known_anatomy(module.config)
    if anatomy is None:
        anatomy = probe_anatomy(module, dimensions_of(module.config))
    return LoadedModel(module, anatomy, dimensions_of(module.config, anatomy.reserved_positions))


def quantisation(config: Any) -> str | None:
    """Return the method by which a checkpoint's weights are quantised, or None."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(method or "a method without a name")


def check_readable(config: Any) -> Anatomy:
    """Return the record of a model whose weights can be read from its files.

    Raises:
        UnsupportedModelError: names on disk are not known for this family, or the weights are quantised.
    """
    anatomy = known_anatomy(config)
    if anatomy is None or anatomy.files is None:
        raise UnsupportedModelError(f"where the family {config.model_type!r} keeps its weights is not known")
    if method := quantisation(config):
        raise UnsupportedModelError(
            f"the weights are quantised ({method}) and cannot be read as matrices; "
            "give the checkpoint that they were made from"
        )
    return anatomy


def resolved_dtype(config: Any, dtype: str) -> str:
    """Return the dtype that `auto` means for a checkpoint; float32 where its configuration names none."""
    return dtype if dtype != "auto" else str(config.dtype or "float32").removeprefix("torch.")


def _load(loader: Any, folder: Path, what: str, **options: Any) -> Any:
    try:
        with quiet_transformers():
            return loader.from_pretrained(folder, **options)
    # Corrupt files, wrong shapes, unknown architectures and missing kernels each raise their own kind.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"cannot load the {what} in {folder}: {reason}") from error
