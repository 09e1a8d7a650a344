"""Ask the client libraries of the hub in a process of their own."""

from pathlib import Path
from typing import Any

from support.hub import ask_in_process

# Questions are JSON on standard input; each answer is a value, or the name and the message of an error.
ASK = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from theodolite_jobs.models.source import fetch, resolve_source
from theodolite_jobs.prompts.sources import read_prompts
from theodolite.spec_parts import ModelSpec, PromptSetSpec

def prompts(settings):
    return read_prompts("goals", PromptSetSpec(**settings), Path("/nowhere"))

def resolve(settings):
    return asdict(resolve_source(ModelSpec(**settings), Path("/nowhere")))

def files(settings):
    weights = settings.pop("which") == "all"
    folder = fetch(resolve_source(ModelSpec(**settings), Path("/nowhere")), Path("/nowhere"), weights=weights)
    return {path.name: path.read_text() for path in folder.iterdir()}

def merged(settings):
    cache = Path(settings.pop("cache"))
    folder = fetch(resolve_source(ModelSpec(**settings), Path("/nowhere")), cache)
    return sorted(path.name for path in folder.iterdir())

def told(settings):
    from theodolite_jobs.stages import listening

    stages = []
    with listening(stages.append):
        files(settings)
    return stages

asked = {"told": told, "prompts": prompts, "resolve": resolve, "files": files, "merged": merged}
answers = {}
for name, (kind, settings) in json.load(sys.stdin).items():
    try:
        answers[name] = {"value": asked[kind](settings)}
    except Exception as error:
        answers[name] = {"error": type(error).__name__, "message": str(error)}
print(json.dumps(answers))
"""

Answers = dict[str, dict[str, Any]]
UNREACHABLE = "http://127.0.0.1:9"  # no server listens on the discard port


def ask(endpoint: str, home: Path, questions: dict[str, tuple[str, dict[str, Any]]], **environment: str) -> Answers:
    return ask_in_process(ASK, endpoint, home, questions, **environment)
