"""What must be equal for all replicas of a run: a GPU's name too, because kinds of GPUs round differently."""

import pytest
import torch

from theodolite.errors import RunDamagedError
from theodolite_jobs.capture_run import check_equal_arithmetic
from theodolite_jobs.cluster import replica
from theodolite_jobs.cluster.replica import arithmetic, full_arithmetic

CPU = {"dtype": "float32", "attention": "sdpa", "device": "cpu", "ranks": 1}
GPU = {"dtype": "bfloat16", "attention": "sdpa", "device": "cuda:0", "ranks": 2}


def test_a_cpu_has_no_name():
    assert arithmetic(CPU) == ("float32", "sdpa", "cpu", "1 rank(s)")
    assert replica._gpu_name(torch.device("cpu")) == {}


def test_the_name_of_a_gpu_is_part_of_the_arithmetic(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H200 of {device}")
    certificate = GPU | replica._gpu_name(torch.device("cuda", 1))
    assert arithmetic(certificate)[2] == full_arithmetic(certificate)[2] == "cuda NVIDIA H200 of cuda:1"
    assert arithmetic(certificate) == arithmetic({**certificate, "device": "cuda:1"})


def test_kinds_of_gpus_do_not_mix_in_a_run():
    h100, h200 = (full_arithmetic(GPU | {"gpu": name}) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    check_equal_arithmetic("tiny-0", h100, h100)
    with pytest.raises(RunDamagedError, match="with cuda NVIDIA H100 80GB HBM3 and would resume with cuda NVIDIA"):
        check_equal_arithmetic("tiny-0", h100, h200)
    for before, now in ((h200, full_arithmetic(CPU)), (full_arithmetic(CPU), h200)):
        with pytest.raises(RunDamagedError):
            check_equal_arithmetic("tiny-0", before, now)
