"""Kubernetes objects as kubectl renders them from an overlay."""

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Thing = dict[str, Any]


def render(folder: Path) -> list[Thing]:
    """Return the objects of a kustomization; skip the test if kubectl is missing, but fail it in CI."""
    done = subprocess.run([_kubectl(), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def render_survey(overlay: Path) -> list[Thing]:
    """Return the objects of deploy/kubernetes/survey for an overlay: those of the overlay, and the batch survey."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "survey"
        shutil.copytree(overlay.parents[1] / "survey", copy)
        file = copy / "kustomization.yaml"
        before, named, after = file.read_text().partition("../overlays/mine")
        assert named
        file.write_text(before + os.path.relpath(overlay.resolve(), copy) + after)
        return render(copy)


@cache
def _kubectl() -> str:
    tool = shutil.which("kubectl")
    version = tool and subprocess.run([tool, "version", "--client"], capture_output=True, text=True, check=False).stdout
    if tool and re.search(r"Kustomize Version: v5", version or ""):
        return tool
    reason = "needs kubectl with kustomize 5 (kubectl 1.27 or newer); Debian 13's package kubernetes-client has it"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
