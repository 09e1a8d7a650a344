"""Load configuration, tokenizer and the base model (without its language-model head) from a folder."""

from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, UnsupportedModelError, first_of
from theodolite_jobs.models.anatomy import Anatomy, dimensions_of, text_config_of
from theodolite_jobs.models.chat_templates import DEFAULT, read_templates
from theodolite_jobs.models.config_sizes import check_text_sizes, read_config
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.families import is_encoder_alone, known_anatomy
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.named_files import check_code, check_tokenizer_files
from theodolite_jobs.models.quantised import NAME_KEY, check_plain, format_of
from theodolite_jobs.models.quiet import plain_errors, quiet_transformers
from theodolite_jobs.models.sharding import check_shardable
from theodolite_jobs.models.tokenizer_fixes import mend_tokenizer

VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json", "*.tiktoken")


def load_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """Return a model's configuration, without a quantisation of its weights, whose name is then `dequantised_from`.

    Raises:
        ModelError: the file cannot be read, states a size that no model has, or names code outside the folder; or the
            model needs its own code.
        UnsupportedModelError: the weights are quantised in an unknown format.
    """
    raw = read_config(folder)
    if trust_remote_code:
        check_code(raw, folder / "config.json")
    stored = format_of(raw)
    from transformers import CONFIG_MAPPING, AutoConfig  # after the checks that need no seconds

    family = str(raw.get("model_type", ""))
    if family not in CONFIG_MAPPING and not trust_remote_code:
        if "auto_map" in raw:
            raise ModelError(
                f"{folder} needs its own code, because transformers does not know {family!r}; "
                "set trust_remote_code, and add the model to THEODOLITE_REMOTE_CODE_ALLOWED"
            )
        if not family:  # transformers would guess it from the name of the folder
            raise ModelError(f"cannot load the configuration in {folder}: it has no model_type; add the family's name")
        similar = ", ".join(get_close_matches(family, CONFIG_MAPPING.keys()))
        raise UnsupportedModelError(
            f"cannot load the configuration in {folder}: transformers does not know its model_type {family!r}; "
            f"{f'similar: {similar}; ' if similar else ''}`theodolite families` lists the families"
        )
    config = _load(AutoConfig, folder, "configuration", trust_remote_code=trust_remote_code)
    with plain_errors(f"read the sizes in {folder / 'config.json'}"):
        check_text_sizes(text_config_of(config), folder / "config.json")
    if stored is not None:
        for one in (config, config.get_text_config()):
            vars(one).pop("quantization_config", None)
        setattr(config, NAME_KEY, stored.name)
    return config


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """Return a model's tokenizer with the chat templates of all its files: one text, several by name, or None.

    Its attribute `mended` names the mistakes that were mended.

    Raises:
        ModelError: the tokenizer or a chat template cannot be read, or the folder has no vocabulary.
    """
    from transformers import AutoTokenizer

    if not any(path for pattern in VOCABULARIES for path in folder.glob(pattern)):
        # transformers would make a tokenizer without a vocabulary.
        raise UnsupportedModelError(f"{folder} has no tokenizer; it needs one of {', '.join(VOCABULARIES)}")
    settings = folder / "tokenizer_config.json"
    check_tokenizer_files(raw := read_json(settings), settings)
    if trust_remote_code:
        check_code(raw, settings)
    tokenizer = _load(AutoTokenizer, folder, "tokenizer", trust_remote_code=trust_remote_code)
    tokenizer.mended = mend_tokenizer(tokenizer)
    if templates := read_templates(folder):  # transformers does not read those of a processor
        tokenizer.chat_template = templates[DEFAULT] if set(templates) == {DEFAULT} else templates
    return tokenizer


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
    """Return the base model, loaded for inference from safetensors only, after turning off TF32 in this process.

    Args:
        folder: the folder with configuration and weights.
        dtype: `auto` is the checkpoint's own dtype.
        attention: `auto` is the kernel that transformers selects for the family.
        device_map: a device such as `cuda`, `auto` to spread blocks over several GPUs, or None for the CPU.
        trust_remote_code: run the checkpoint's own code.
        ranks: the number of processes that load the model together, each with a shard of every matrix on its own
            device. They are in one torch.distributed group, and all must take part in every run of the model.
        blocks: load only this many first blocks, unless the model has a table for all blocks; None loads all.

    Raises:
        ModelError: a weight is missing, surplus or unreadable, or the folder has no safetensors weights.
        UnsupportedModelError: the family is not supported, or cannot be sharded over `ranks`; or the text part of a
            multimodal model does not compute the same as the whole.
    """
    from transformers import AutoModel, DistributedConfig

    # These load torch, which takes seconds.
    from theodolite_jobs.models.float32 import turn_off_tf32
    from theodolite_jobs.models.stored_names import compare_names, unread_names
    from theodolite_jobs.models.tensors import TensorFiles
    from theodolite_jobs.models.text_part import check_text_part, drop_decoder
    from theodolite_jobs.models.weights import Weights

    turn_off_tf32()
    config = load_config(folder, trust_remote_code)
    check_plain(folder)
    if ranks > 1:
        check_shardable(config, ranks)
    if blocks is not None:
        keep_first_blocks(config, blocks)
    if is_encoder_alone(config):
        drop_decoder(config)
    anatomy = known_anatomy(config)
    files = TensorFiles(folder)  # opens every file, so that the error names a broken or missing one
    if blocks is None:
        if anatomy is not None and anatomy.files is not None:
            Weights(folder, config)  # names what a block lacks by its name in the files
        compare_names(config, files.headers).check_files(files)
    module, report = _load(
        AutoModel,
        folder,
        "weights",
        config=config,
        dtype=resolved_dtype(config, dtype),
        attn_implementation=None if attention == "auto" else attention,
        device_map=device_map,
        distributed_config=DistributedConfig(tp_size=ranks) if ranks > 1 else None,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # they are reported below, by name
        output_loading_info=True,
        trust_remote_code=trust_remote_code,
        **(anatomy.load_options if anatomy else {}),
    )
    missing = sorted(key for key in report["missing_keys"] if not unread_names(config).match(key))
    if missing:
        raise ModelError(f"the weights in {folder} lack {first_of(missing, 'tensor')}")
    wrong = sorted(report["mismatched_keys"])
    if wrong:
        raise ModelError(f"the weights in {folder} do not fit the configuration: {wrong[0][0]} has {wrong[0][1]}")
    loaded = wrap(module)
    if ranks == 1:
        _check_heads(loaded, folder)
    check_text_part(module)
    reload = partial(load_model, folder, attention=attention, trust_remote_code=trust_remote_code)
    return replace(loaded, ranks=ranks, reload=reload)


def keep_first_blocks(config: Any, count: int) -> None:
    """Change a configuration into that of a model with the first blocks only.

    It stays that of the whole model if one table has the per-layer inputs of all blocks (Gemma 4).
    """
    if getattr(config.get_text_config(), "hidden_size_per_layer_input", None):
        return
    for one in (config, config.get_text_config()):
        one.num_hidden_layers = count
        if one.num_hidden_layers != count:  # Nemotron-H counts its list of kinds
            one.layer_types = one.layer_types[:count]


def _check_heads(model: LoadedModel, folder: Path) -> None:
    """Raise ModelError if the heads of the configuration do not fill the input of attention's output projection."""
    anatomy, sizes = model.anatomy, model.dimensions
    layers = anatomy.attention_layers(sizes.n_layers)
    if anatomy.files is None or not layers:
        return
    output = anatomy.files.output
    width = model.blocks[layers[0]].get_submodule(output).weight.numel() // sizes.d_model
    if width != sizes.n_heads * sizes.d_head:
        raise ModelError(
            f"the weights in {folder} do not fit the configuration: {output} reads {width} values, and "
            f"{sizes.n_heads} heads of {sizes.d_head} have {sizes.n_heads * sizes.d_head}; "
            "use the config.json that belongs to these weights"
        )


def wrap(module: Any, anatomy: Anatomy | None = None) -> LoadedModel:
    """Return a base model in memory as a LoadedModel; a family that is not in the table is probed.

    Of a multimodal model, it is the text part, and of an encoder with a decoder, the encoder.

    Raises:
        UnsupportedModelError: a probe of the family's blocks fails, or the text part has no module of its own.
    """
    # torch takes seconds to load
    from theodolite_jobs.models.probe import probe_anatomy
    from theodolite_jobs.models.shared_blocks import unroll
    from theodolite_jobs.models.text_part import text_part

    module = text_part(module).eval().requires_grad_(False)
    anatomy = anatomy or known_anatomy(module.config)
    if anatomy is None:
        anatomy = probe_anatomy(module, dimensions_of(module.config))
    unroll(module, anatomy)
    _run_experts_in_turn(module)
    return LoadedModel(module, anatomy, dimensions_of(module.config, anatomy.reserved_positions))


def _run_experts_in_turn(module: Any) -> None:
    """Run experts one after the other on a CPU, and if their widths do not fit the grouped product.

    The rows of the grouped product need 16 bytes; on a CPU it rounds as the number of threads wants, see
    `theodolite_jobs.models.threads`.
    """
    if getattr(module.config, "_experts_implementation", None) not in ("grouped_mm", "batched_mm"):
        return
    merged = [weight for name, weight in module.named_parameters() if ".experts." in name and weight.ndim == 3]
    on_cpu = module.device.type == "cpu"
    if on_cpu or any(size * weight.itemsize % 16 for weight in merged for size in weight.shape[1:]):
        with quiet_transformers():
            module.set_experts_implementation("eager")


def resolved_dtype(config: Any, dtype: str) -> str:
    """Return the dtype that `auto` means for a checkpoint; float32 if its configuration names none."""
    return dtype if dtype != "auto" else str(config.dtype or "float32").removeprefix("torch.")


def _load(loader: Any, folder: Path, what: str, **options: Any) -> Any:
    try:
        with quiet_transformers():
            return loader.from_pretrained(folder, **options)
    # Corrupt files, wrong shapes, unknown architectures and missing kernels each raise their own exception types.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"cannot load the {what} in {folder}: {reason}") from error
