"""The README and the documentation as a reader follows them: their files, commands and programs, page by page.

Each page runs in a folder of its own, which already has the store of the quickstart and the README. The text of the
page decides what runs; only what NOT_RUN names is left out. Replicas are forked processes: Ray's actors would import
torch again in each survey.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from chaos.processes import capture_without_ray
from support.adapters import save_adapter
from support.commands import theodolite
from support.documented import PAGES, Block, blocks, commands
from support.each import each
from support.faulty_bucket import faulty_bucket
from support.listening import served
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model
from threadpoolctl import threadpool_limits

from theodolite.query.runs import summaries

pytestmark = pytest.mark.filterwarnings("ignore:.*mostly noise")  # the directions of a random model are

ALIAS, MODEL = "smollm2-135m-instruct", "tiny-instruct"
"""The documentation's model, and the folder of the tiny model that takes its place in every text."""

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The id of the documentation's model on the hub: another folder of the same tiny model."""

DEMO = re.compile(rf"{ALIAS}-[0-9a-f]{{12}}")
"""The id of the demo's run. The run of the quickstart takes its place."""

SMALL_MODELS = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B-Instruct")
SMALL_MODELS += ("checkpoints/step-1000", "checkpoints/step-2000")
"""Folders of smaller tiny models, under the names of the documentation."""

SERVICE = "http://127.0.0.1:8000"
"""The URL that the documentation gives to the service. That of the test's own service takes its place."""

NOT_RUN = {
    r"\. |python3 -m venv|pip install|make ": "installs packages or builds an environment",
    r"kubectl |helm |cp -r deploy/kubernetes": "needs Kubernetes",
    r"(job=\$\()?sbatch ": "needs Slurm",
    r"ray start|theodolite (submit|status)|.*/v1/jobs|(export )?THEODOLITE_JOBS_URL": "needs a Ray cluster that stays",
    r"theodolite serve": "runs until it is stopped; the test serves the store itself",
    r"theodolite .*--replicas": "needs several GPUs",
    r"llama-cli ": "is another program",
    r"export AWS_": "holds credentials; the test's own bucket has others",
}
"""What a command begins with that this test does not run, and the reason."""

OPTIONAL = r"^import (wandb|mlflow|kaleido)\b"
"""Packages without which their programs are not run."""


def is_run(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern in NOT_RUN)


def runnable(page: Path) -> bool:
    """Return whether a page has something to run."""
    shell = [command for block in blocks(page) if block.language == "sh" for command in commands(block.code)]
    return any(map(is_run, shell)) or any(block.language == "python" for block in blocks(page))


FIRST = [page for name in ("quickstart.md", "README.md") for page in PAGES if page.name == name]
OTHERS = [page for page in PAGES if page not in FIRST and runnable(page)]


class Reader:
    """Follows a page in the working directory; fails at the first thing that does not work."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.service = SERVICE
        self.done: list[str] = []

    def follow(self, page: Path) -> "Reader":
        with ExitStack() as stack:
            if SERVICE in page.read_text(encoding="utf-8"):
                self.service = stack.enter_context(served("theodolite-store"))
            for block in blocks(page):
                self.do(block)
        return self

    def do(self, block: Block) -> None:
        if block.file:
            Path(block.file).write_text(self.own(block.code), encoding="utf-8")
        elif block.language == "python" and all(map(find_spec, re.findall(OPTIONAL, block.code, re.MULTILINE))):
            exec(compile(self.own(block.code), "documentation", "exec"), {})
            self.done.append("python")
        elif block.language == "sh":
            for command in filter(is_run, commands(block.code)):
                self.run(self.own(command))

    def own(self, text: str) -> str:
        """Return a text of the documentation with the test's own model, run and service."""
        runs = [run["run_id"] for run in summaries("theodolite-store") if run["contrasts"]]  # newest first
        text = DEMO.sub(runs[-1] if runs else "", text).replace(ALIAS, MODEL).replace(SERVICE, self.service)
        names = re.findall(r"(?<![\w$])RUN\b(?!=)", text)
        for run in reversed(runs[: len(names)]):
            text = re.sub(r"(?<![\w$])RUN\b(?!=)", run, text, count=1)
        return re.sub(r"\$(\w+)", lambda name: self.variables.get(name[1], name[0]), text)

    def run(self, command: str) -> None:
        if assignment := re.fullmatch(r"(\w+)=(\S+)(\s+#.*)?", command):
            self.variables[assignment[1]] = assignment[2]
            return
        if command.startswith("theodolite "):
            done = theodolite(*shlex.split(command, comments=True)[1:])
        else:
            shell = ["bash", "-c", re.sub(r"^curl ", "curl -sSf ", command)]  # -f: fail for an error of the service
            done = subprocess.run(shell, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{output}"
        assert "Traceback" not in output
        self.done.append(command)


@pytest.fixture(scope="module")
def surroundings() -> Iterator[dict[str, str]]:
    """Environment variables of a bucket, for replicas that are forked."""
    with faulty_bucket() as bucket, capture_without_ray():  # no test disturbs this bucket
        assert httpx.put(f"{bucket.environment['AWS_ENDPOINT']}/bucket").is_success
        yield bucket.environment


@pytest.fixture(scope="module")
def followed(surroundings, tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of the models and of the store after the quickstart and the README, and what was done."""
    folder = tmp_path_factory.mktemp("first")
    # The documentation's examples name layer 15 and head 4.
    sizes = {"num_hidden_layers": 16, "hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 6}
    with patch.dict(GROUPED, {**sizes, "max_position_embeddings": 256}):
        for name in (MODEL, HUB_ID):
            save_model(folder / name)
    save_adapter(folder / MODEL, folder / "my-lora", target_modules=["q_proj"])
    with patch.dict(GROUPED, {"max_position_embeddings": 256}):
        for seed, name in enumerate(SMALL_MODELS):
            save_model(folder / name, seed)
    # Several threads would only wait for each other: the matrices are tiny.
    with pytest.MonkeyPatch.context() as patched, threadpool_limits(1):
        enter(patched, folder, surroundings)
        return folder, [command for page in FIRST for command in Reader().follow(page).done]


def enter(patched: pytest.MonkeyPatch, folder: Path, environment: dict[str, str]) -> None:
    """Work in a folder, without the settings of this machine."""
    patched.chdir(folder)
    patched.delenv("THEODOLITE_STORE", raising=False)
    patched.setenv("THEODOLITE_CACHE", str(folder / "cache"))
    for name, value in environment.items():
        patched.setenv(name, value)


@pytest.mark.nightly
def test_the_quickstart_and_the_readme_run(followed):
    folder, done = followed
    called = [command.split()[1] for command in done if command.startswith("theodolite ")]
    assert called == ["spec", "plan", "survey", "run", "spec", "plan", "survey", "heads", "run", "run"]
    assert done.count("python") == 2
    assert len(list(folder.glob("theodolite-store/runs/*/report.html"))) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_a_page_runs(page, followed, surroundings, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(followed[0], tmp_path / "reader"))
    enter(monkeypatch, folder, surroundings)
    with threadpool_limits(1):
        assert Reader().follow(page).done


@pytest.mark.parametrize(
    "block",
    ["sh\ntheodolite run show nobody\n", "sh\ntheodolite run show RUN\n", "sh\nsed s/a/b/ absent\n", "python\n1 / 0\n"],
)
def test_what_does_not_work_is_an_error(block, tmp_path, monkeypatch):
    enter(monkeypatch, tmp_path, {})
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```{block}```\n")
    with pytest.raises((AssertionError, ZeroDivisionError)):
        Reader().follow(page)


@cache
def all_commands() -> list[str]:
    found = [block.code for page in PAGES for block in blocks(page) if block.language == "sh"]
    return [command for code in found for command in commands(code)]


@each("pattern", NOT_RUN)
def test_each_reason_not_to_run_a_command_is_still_needed(pattern):
    assert any(re.match(pattern, command) for command in all_commands())
