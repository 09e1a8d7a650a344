"""Damage objects of a finished run at random: is each damage named, and does one repair restore the same bits?"""

import io
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.tiny_survey import EFFECTS, save_model, spec_of

from chaos.outcomes import contents, open_only_run, records_of
from chaos.processes import capture_without_ray
from theodolite.errors import TheodoliteError
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.objects import keys
from theodolite.store.runs import Run
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import survey

KINDS = ("flip a bit", "truncate", "empty", "delete", "append", "other content", "swap")

COORDINATES = ("position", "layer", "d_model", "unit")

GROUPS = ("run.json", "COMPLETE", "shards/", "prompts/", "activations.zarr/", "results.zarr/", "tables/")
"""Groups of objects; a damage chooses the group first, so that the few records are damaged as often as the chunks."""


@dataclass
class Damaged:
    """A copy of a run with its damages, and what was wrong with the treatment of them; empty lists if nothing was."""

    seed: int
    damages: list[str] = field(default_factory=list)
    needed_spec: bool = False
    unnamed: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    seconds: float = 0.0


def damage(run: Path, present: Sequence[str], draw: random.Random) -> tuple[str, str]:
    """Damage one object; return its key and the kind of the damage."""
    # An earlier damage may have removed an object, also the group's only one, or have left nothing of it.
    group, left = draw.choice(GROUPS), [key for key in present if (run / key).exists() and (run / key).stat().st_size]
    key = draw.choice([key for key in left if key.startswith(group)] or left)
    kind, file = draw.choice(KINDS), run / key
    content = bytearray(file.read_bytes())
    if kind == "flip a bit":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "truncate":
        content = content[: draw.randrange(len(content))]
    elif kind == "empty":
        content = bytearray()
    elif kind == "append":
        content += draw.randbytes(draw.randint(1, 20))
    elif kind == "other content":
        content = bytearray(
            draw.choice([b"{}", b"[]", b"null", b'{"../x": 1}', b"\xff\xfe", draw.randbytes(len(content))])
        )
    elif kind == "swap":
        others = [other for other in present if other != key and (run / other).exists()]
        siblings = [other for other in others if (run / other).parent == file.parent] or others
        other = run / draw.choice(siblings)
        content, before = bytearray(other.read_bytes()), bytes(content)
        other.write_bytes(before)
    file.write_bytes(content)
    if kind == "delete":
        file.unlink()
    return key, kind


def run_damages(seeds: Iterable[int], report: Callable[[Damaged], None]) -> list[Damaged]:
    """Damage a copy of a run for each seed, repair it, and return what was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="theodolite-damages-"))
    spec = spec_of(save_model(folder / "model"), effects=EFFECTS)
    found = []
    with capture_without_ray():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            survey(spec, Path(), Settings(store=str(folder / "whole"), cache=folder / "cache"), Console())
        for seed in seeds:
            found.append(_damage_and_repair(folder, spec, seed))
            report(found[-1])
    if not any(one.unnamed or one.not_restored for one in found):
        shutil.rmtree(folder)
    return found


def _damage_and_repair(folder: Path, spec: SurveySpec, seed: int) -> Damaged:
    begin, draw, found = time.monotonic(), random.Random(seed), Damaged(seed)
    whole = open_only_run(str(folder / "whole"))
    store = folder / f"seed-{seed}"
    run = Path(shutil.copytree(Path(whole.url).parents[1], store)) / "runs" / whole.id
    present = sorted(key for key in keys(whole.location) if key != "report.html")
    damaged = [damage(run, present, draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    found.damages = [f"{kind}: {key}" for key, kind in damaged]
    changed = {key for key in present if not (run / key).exists() or (run / key).read_bytes() != bytes_of(whole, key)}
    named = _problems(str(store))
    found.unnamed = [key for key in sorted(changed) if not is_named(key, named)]
    settings = Settings(store=str(store), cache=folder / "cache")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            try:
                found.not_restored = repair(whole.id, None, Path(), settings, Console())
            except TheodoliteError as error:
                if "--spec" not in str(error):
                    raise
                found.needed_spec = True
                found.not_restored = repair(whole.id, spec, Path(), settings, Console())
        except Exception as error:
            found.not_restored.append(f"{type(error).__name__}: {error}")
    found.not_restored += _problems(str(store)) or _differences(whole, str(store))
    found.seconds = time.monotonic() - begin
    if not (found.unnamed or found.not_restored):
        shutil.rmtree(store)
    return found


def is_named(key: str, problems: Sequence[str]) -> bool:
    """Return whether a problem names an object or, for an array of activations, its shard.

    Without run.json nothing else can be compared, and without COMPLETE only shards can.
    """
    text = " ".join(problems)
    if any(re.search(r"run\.json (is|has|differs)\b", problem) for problem in problems):
        return True
    if ("none are finished" in text or "COMPLETE" in text) and not key.startswith("shards/"):
        return True
    shard = shard_of(key)
    return key in text or (shard is not None and shard in text)


def shard_of(key: str) -> str | None:
    """Return the name of the shard that a chunk of activations or a commit record belongs to."""
    parts = key.split("/")
    if parts[0] == "activations.zarr" and "c" in parts and parts[2] not in COORDINATES:
        return f"{parts[1]}/{int(parts[4]):05d}"
    return f"{parts[1]}/{parts[2].removesuffix('.json')}" if parts[0] == "shards" else None


def bytes_of(run: Run, key: str) -> bytes:
    """Return the bytes of an object of a run in a folder."""
    return (Path(run.url) / key).read_bytes()


def _problems(store: str) -> list[str]:
    try:
        return list(verify(open_only_run(store)))
    except TheodoliteError as error:
        return [str(error)]


def _differences(whole: Run, store: str) -> list[str]:
    repaired = open_only_run(store)
    expected, stored = contents(whole), contents(repaired)
    different = [key for key in sorted(expected.keys() | stored.keys()) if expected.get(key) != stored.get(key)]
    records = records_of(repaired)
    return different + [name for name, record in records_of(whole).items() if records.get(name) != record]


def damages_summary(found: Sequence[Damaged]) -> dict[str, Any]:
    """Return the number of runs, of damages by kind and by group, and of problems."""
    damages = [damage.split(": ", 1) for one in found for damage in one.damages]
    return {
        "runs": len(found),
        "damages_by_kind": dict(sorted(Counter(kind for kind, _ in damages).items())),
        "damages_by_object": dict(
            sorted(Counter(next(group for group in GROUPS if key.startswith(group)) for _, key in damages).items())
        ),
        "needed_spec": sum(one.needed_spec for one in found),
        "unnamed": sum(bool(one.unnamed) for one in found),
        "not_restored": sum(bool(one.not_restored) for one in found),
        "slowest_seconds": round(max(one.seconds for one in found), 1),
        "seconds": round(sum(one.seconds for one in found), 1),
        "seeds_with_problems": [one.seed for one in found if one.unnamed or one.not_restored],
    }
