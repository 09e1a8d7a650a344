"""Measure the analysis `words`, and the vocabulary's products of `heads`, on one GPU and on the CPU of its machine.

The script writes random bf16 weights of one layer with the shape of Qwen2.5-32B and all 152,064 tokens, and draws the
singular vectors at random. `words` is one call of `layer_words`: the tokens of all vectors of all heads, and the nouns
as queries and values. `products` are the sums over the vocabulary that a survey of the heads computes once. Both run on
each device; the first run on the GPU is not timed.

`same_tokens` is the share of places in all lists where both devices have the same token. Where they differ, the scores
should differ by rounding only: `largest_score_difference` is relative to the largest score of its table.

The last line is one JSON object.
Usage: python benchmarks/words_gpu.py --help
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from generated import D_MODEL, N_HEADS
from heads import write_weights

from theodolite_jobs.groups.heads.layer import vocabulary_products
from theodolite_jobs.groups.words.formulas import standardisation
from theodolite_jobs.groups.words.layer import READ_VECTORS, Decoding, Frames, layer_words
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings, input_norm

VECTORS, TOKENS = 20, 20


def main() -> None:
    options = measuring.read_options(
        "Measure the products with a large vocabulary on one GPU and on the CPU; print JSON.",
        vocabulary=(152_064, "tokens of the vocabulary"),
        nouns=(64, "nouns"),
        device=("cuda", "the device to compare; cpu tries the code"),
    )
    if (device := measuring.device_or_hint(options.device, "--device cpu")) is None:
        return
    with tempfile.TemporaryDirectory(prefix="theodolite-words-") as temporary:
        folder = Path(temporary) / "model"
        write_weights(folder, 1, options.vocabulary)
        weights = Weights(folder, load_config(folder))
        words = compared(words_of(weights, options.nouns), device, difference_of_words)
        products = compared(
            lambda where: vocabulary_products(weights, False, where).centred, device, difference_of_products
        )
    sizes = {"vocabulary": options.vocabulary, "d_model": D_MODEL, "heads": N_HEADS, "vectors": VECTORS}
    result = {**sizes, "nouns": options.nouns, "cpu_threads": torch.get_num_threads()}
    measuring.publish({**result, "words": words, "products": products}, options.out, device)


def words_of(weights: Weights, n_nouns: int) -> Callable[[torch.device], Frames]:
    """Return the function that decodes the layer on a device."""
    rng = np.random.default_rng(0)
    rows, n_tokens = input_embeddings(weights), weights.vocabulary_size
    nouns = rng.choice(n_tokens, n_nouns, replace=False)
    decoding = Decoding(
        count=TOKENS,
        n_tokens=n_tokens,
        nouns=nouns,
        noun_embeddings=rows(slice(None))[nouns].double().numpy(),
        fold_norm=False,
        tied=False,
        standardisation=standardisation(rows, n_tokens, input_norm(weights, 0)),
    )
    drawn = rng.standard_normal((len(READ_VECTORS) + 1, N_HEADS, VECTORS, D_MODEL)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    vectors = dict(zip((*READ_VECTORS, "ov right"), drawn, strict=True))
    return lambda device: layer_words(weights, 0, decoding, vectors, device)


def compared(
    compute: Callable[[torch.device], Any], device: torch.device, difference: Callable[[Any, Any], dict[str, float]]
) -> dict[str, float]:
    """Return the seconds of a function on both devices, and how its results differ."""
    compute(device)  # the first products also start the library
    seconds, results = {}, {}
    for name, where in {"gpu": device, "cpu": measuring.CPU}.items():
        started = time.perf_counter()
        results[name] = compute(where)
        seconds[f"{name}_seconds"] = time.perf_counter() - started
        measuring.say(f"{name}: {seconds[f'{name}_seconds']:.2f} s")
    return {**seconds, **difference(results["gpu"], results["cpu"])}


def difference_of_words(ours: Frames, theirs: Frames) -> dict[str, float]:
    """Return the share of equal tokens, and the largest difference of scores."""
    same, places, largest = 0, 0, 0.0
    for name, frame in theirs.items():
        for column in frame.columns:
            if column.endswith("_id") and column != "noun_id":
                same, places = same + int((ours[name][column] == frame[column]).sum()), places + len(frame)
            elif column in ("score", "correlation"):
                scale = np.abs(frame[column]).max()
                largest = max(largest, float(np.abs(ours[name][column] - frame[column]).max() / scale))
    return {"same_tokens": same / places, "largest_score_difference": largest}


def difference_of_products(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Return ‖x − y‖ / ‖y‖."""
    return {"relative_difference": float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))}


if __name__ == "__main__":
    main()
