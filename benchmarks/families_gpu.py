"""Compare a GPU with the CPU on a tiny random model of every family that `families.py` surveys.

- `against_cpu`: the largest relative error of the GPU's float32 activations, at every site and layer, against those of
  the CPU. Both run single prompts without padding.
- `max_error` in float32, bfloat16 and float16: the largest error of the parity certificate on the GPU, which compares
  batches with padding to single prompts on the GPU. A text instead says what refuses the model.
- `same_bits`: whether a second capture of the same batches on the GPU gives the same bits.

The last line is one JSON object.

Usage: python benchmarks/families_gpu.py --help
"""

import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from families import (
    LAYERS,
    certified,
    language_models,
    one_line,
    plan_of,
    random_tokens,
    save_tiny_model,
    sites_of,
    tiny_config,
)

from theodolite.errors import TheodoliteError
from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.models.load import load_model
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.quiet import quiet_transformers
from theodolite_jobs.models.reference import Reading, read_sites, relative_errors


def main() -> None:
    options = measuring.read_options(
        "Compare a GPU with the CPU on a tiny model of every family; print JSON.",
        only=(None, "the families, with commas between them"),
        processes=(1, "families at a time"),
        device=("cuda", "the device to compare; cpu tries the code"),
    )
    if (device := measuring.device_or_hint(options.device, "--device cpu")) is None:
        return
    names = options.only.split(",") if options.only else language_models()
    families = {}
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(options.processes, mp_context=spawn) as pool:
        for name, result in zip(names, pool.map(survey, names, [options.device] * len(names)), strict=True):
            families[name] = result
            measuring.say(json.dumps({name: result}))
            if options.out:  # a cut loses nothing
                Path(options.out).write_text(json.dumps({"families": families}))
    measuring.publish({"families": families}, options.out, device)


def survey(name: str, device: str) -> dict[str, Any]:
    """Return the errors of one family, or what refuses it."""
    torch.set_num_threads(1)  # a tiny model is slower on more
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            with quiet_transformers():
                save_tiny_model(tiny_config(name), temporary)
        except Exception as error:  # each family fails with another error
            return {"not_built": one_line(error)}
        try:
            on_cpu, on_gpu = (load_model(folder, dtype="float32", device_map=where) for where in (None, device))
            errors = {
                "known_by": on_gpu.anatomy.known_by,
                "against_cpu": against(on_gpu, on_cpu),
                "same_bits": same_bits(on_gpu),
            }
        except TheodoliteError as refusal:
            return {"refused": one_line(refusal)}
        except Exception as error:
            return {"failed": one_line(error)}
        return {**errors, **{dtype: certificate(folder, dtype, device) for dtype in ("float32", "bfloat16", "float16")}}


def certificate(folder: Path, dtype: str, device: str) -> Any:
    """Return the largest error of the parity certificate in one precision, or what refuses the model in it."""
    try:
        return {"max_error": certified(load_model(folder, dtype=dtype, device_map=device))}
    except Exception as error:
        return one_line(error)


def against(model: LoadedModel, other: LoadedModel) -> float:
    """Return the largest relative error of a model's activations against those of another; NaN if one is not finite."""
    errors = []
    for ids in random_tokens():
        ours, theirs = (read_sites(one, ids, range(-len(ids), 0)) for one in (model, other))
        errors += [largest_error(ours, theirs, site) for site in theirs]
    return float(np.max(errors))


def largest_error(ours: Reading, theirs: Reading, site: Site) -> float:
    """Return the largest relative error at a site; layers without the site are NaN in both."""
    missing = np.isnan(theirs[site]).all(axis=-1)
    if not (np.isnan(ours[site]).all(axis=-1) == missing).all():
        raise ValueError(f"the devices have NaN at other places of {site.value}")
    return float(relative_errors(ours[site], theirs[site])[~missing].max(initial=0.0))


def same_bits(model: LoadedModel) -> bool:
    """Return whether two captures of the same batches are equal, bit for bit."""
    plan, sites = plan_of(model), sites_of(model)
    first, second = (
        Engine(model, sites, range(LAYERS)).capture(plan.task(plan.shards[0], random_tokens())).activations
        for _ in range(2)
    )
    return all(values.tobytes() == second[site].tobytes() for site, values in first.items())


if __name__ == "__main__":
    main()
