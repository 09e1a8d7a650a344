"""Stored runs of random activations, analysed."""

import numpy as np
from support.analysing import analyse
from support.stored import store_run

SITES = ("resid_pre", "resid_mid")


PAIRED = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}


UNPAIRED = {"subject": {"positive": "bad", "negative": "words", "paired": False}}


def draw(n, positions=2, seed=0, shift=1.0):
    rng = np.random.default_rng(seed)
    return {site: (rng.normal(size=(n, positions, 3, 16)) + shift).astype(np.float32) for site in SITES}


def silent(*_):
    pass


def crash(*_, **__):
    raise KeyboardInterrupt


def analysed(folder, arrays, contrasts, **record):
    run = store_run(folder, arrays, contrasts=contrasts, **record)
    analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    return run
