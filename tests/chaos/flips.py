"""Flip one bit of a stored file at a time: every reader must say the file is damaged, or read what it read before."""

import logging
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from support.short_reports import short_reports
from support.tiny_survey import EFFECTS, save_model, spec_of

from chaos.damages import is_named
from chaos.processes import capture_without_ray
from theodolite.api.credentials import create_credential, damaged_credentials, list_credentials
from theodolite.errors import PromptError, RunInUseError, StoreError
from theodolite.processes import process_of
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.labels import Labels, change_labels, read_labels
from theodolite.store.leases import refuse_in_use
from theodolite.store.objects import get, keys, open_location, put
from theodolite.store.pieces import record
from theodolite.store.runs import Run, open_run
from theodolite.store.upload_owners import owned_uploads
from theodolite.store.uploads import read_upload, store_upload
from theodolite.submission.job_store import End, create_attempt, end_attempt, read_jobs, record_run, store_spec
from theodolite_jobs.capture.plan import ShardPlan
from theodolite_jobs.effects.part_store import PARTS, PartStore
from theodolite_jobs.effects.work import Vectors
from theodolite_jobs.models.convert.files import atomic_folder, create_once
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


@dataclass(frozen=True)
class Kind:
    """A kind of file: its files, and whether a reader is right about a file of which a bit may be flipped."""

    files: list[Path]
    is_right: Callable[[Path], bool]


def run_flips(number: int, seed: int = 0) -> dict[str, Any]:
    """Flip bits of all kinds of files in turn; return how many, and those that were wrong in silence or unforeseen."""
    for name in ("theodolite", "theodolite_jobs"):  # they name damaged files
        logging.getLogger(name).setLevel(logging.ERROR)
    begin, draw = time.monotonic(), random.Random(seed)
    problems, flipped = [], Counter[str]()
    with tempfile.TemporaryDirectory(prefix="theodolite-flips-") as folder:
        kinds = _kinds(Path(folder))
        for name, kind in kinds.items():
            assert all(kind.is_right(file) for file in kind.files[:20]), name
        for name in (list(kinds)[index % len(kinds)] for index in range(number)):
            file = draw.choice(kinds[name].files)
            place, bit = draw.randrange(file.stat().st_size), draw.randrange(8)
            flipped[name] += 1
            if problem := _flip(kinds[name], file, place, bit):
                problems.append(f"{name}: {file.relative_to(folder)}, byte {place}, bit {bit}: {problem}")
    return {
        "flips": dict(flipped),
        "seconds": round(time.monotonic() - begin, 1),
        "problems": problems,
        "seeds_with_problems": [seed] if problems else [],
    }


def _flip(kind: Kind, file: Path, place: int, bit: int) -> str | None:
    """Return what was wrong with a flipped bit; the file is then as before."""
    content = file.read_bytes()
    file.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
    try:
        return None if kind.is_right(file) else "wrong in silence"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        file.write_bytes(content)


def _kinds(folder: Path) -> dict[str, Kind]:
    store, spec = str(folder / "store"), spec_of(save_model(folder / "model"), effects=EFFECTS)
    with capture_without_ray(), short_reports():
        run = survey(spec, Path(), Settings(store=store, cache=folder / "cache"), Console())
    return {
        "run": _run(run),
        "effects": _effects(str(folder / "unfinished")),
        "labels": _labels(run),
        "credentials": _credentials(store),
        "jobs": _jobs(spec, store),
        "uploads": _uploads(store),
        "leases": _leases(store),
        "converted model": _converted(folder / "cache" / "model"),
    }


def _run(run: Run) -> Kind:
    """Any object of a finished run: `verify` names it."""
    folder = Path(run.url)
    whole = {folder / key: get(run.location, key) or b"" for key in keys(run.location) if key != "report.html"}
    files = [file for file, content in whole.items() if content]

    def is_right(file: Path) -> bool:
        key = file.relative_to(folder).as_posix()
        try:
            problems = list(verify(open_run(run.store, run.id)))
        except StoreError as error:
            problems = [str(error)]
        return bool(problems) != (file.read_bytes() == whole[file]) and is_named(key, problems or [key])

    return Kind(files, is_right)


def _effects(unfinished: str) -> Kind:
    """A part of the prompts of an unfinished analysis of effects, and the vectors of its interventions."""
    draw = np.random.default_rng(0)
    parts = PartStore(open_location(unfinished, create=True), "model-0", "0" * 64)
    part, numbers = ShardPlan("one_last", 0, 0, 4, ((0, 1, 2, 3),)), {"kl": draw.normal(size=(4, 5))}
    arrays = [draw.normal(size=shape).astype(np.float32) for shape in ((2, 8), (2, 2, 8), (3, 2, 8), (3, 2, 8), (2, 8))]
    parts.write_part(part, numbers, device="cpu")
    parts.write_vectors("one_last", Vectors(*arrays, score_layers=(0, 1)))
    files = sorted((Path(unfinished) / PARTS).rglob("*.npz"))

    def is_right(_file: Path) -> bool:
        found = parts.read_part(part)
        if found is not None and not np.array_equal(found["kl"], numbers["kl"]):
            return False
        with suppress(StoreError):
            vectors = parts.read_vectors("one_last")
            return all(np.array_equal(*both) for both in zip(list(asdict(vectors).values())[:5], arrays, strict=True))
        return found is not None  # only one of them is damaged

    return Kind(files, is_right)


def _labels(run: Run) -> Kind:
    """A label: it is ignored."""
    given = Labels(name="first try", tags=("paper", "draft"), remarks="Compare with the base model.")
    change_labels(run, given)
    files = sorted((Path(run.store) / "labels" / run.id).iterdir())

    def is_right(file: Path) -> bool:
        ignored = given.model_copy(update={file.stem: getattr(Labels(), file.stem)})
        return read_labels(run) in (given, ignored)

    return Kind(files, is_right)


def _credentials(store: str) -> Kind:
    """A credential: it locks out its token, and no other."""
    created = [create_credential(store, scopes, days=3)[1] for scopes in (["read"], ["read", "submit"])]
    files = [Path(store) / "tokens" / f"{one.id}.json" for one in created]

    def is_right(file: Path) -> bool:
        others = [one for one in created if one.id != file.stem]
        found = list_credentials(store), damaged_credentials(store)
        return (found[0] == others and found[1] == [f"tokens/{file.name}"]) or set(found[0]) == set(created)

    return Kind(files, is_right)


def _jobs(spec: SurveySpec, store: str) -> Kind:
    """A record of a survey job: the job has failed for this reason, or is not known without its spec."""
    job_id = store_spec(store, spec)
    create_attempt(store, job_id, 1, "local")
    record_run(store, job_id, "model-0")
    end_attempt(store, job_id, 1, End("succeeded"))
    (whole,) = read_jobs(store, Cache(0))
    names = ("spec.json", "run.json", "attempts/00001.json", "ends/00001.json")

    def is_right(file: Path) -> bool:
        jobs = read_jobs(store, Cache(0))
        ends = [job.end for job in jobs]
        named = [End("failed", f"{file.relative_to(store).as_posix()} is damaged; submit the survey again")]
        return jobs == [whole] or ends == ([] if file.name == "spec.json" else named)

    return Kind([Path(store) / "jobs" / job_id / name for name in names], is_right)


def _uploads(store: str) -> Kind:
    """A prompt file, which is refused, and the record of its owner, which then has no time."""
    content = b"".join(b"prompt %d\n" % number for number in range(50))
    name = store_upload(store, content, "txt").partition(":")[2]
    (whole,) = owned_uploads(store)

    def is_right(_file: Path) -> bool:
        if owned_uploads(store) not in ([whole], [replace(whole, uploaded=None)]):
            return False
        with suppress(PromptError):
            return read_upload(store, name) == content
        return True

    return Kind([Path(store) / "uploads" / name, Path(store) / "upload-owners" / "local" / f"{name}.json"], is_right)


def _leases(store: str) -> Kind:
    """A lease: its run stays in use, whatever can be read of the driver."""
    key = "leases/model-0/0123456789ab.json"
    put(open_location(store), key, record(key, {"host": "here", "process": asdict(process_of(os.getpid()))}))

    def is_right(_file: Path) -> bool:
        with suppress(RunInUseError):
            refuse_in_use(store, "model-0")
            return False
        return True

    return Kind([Path(store) / key], is_right)


def _converted(folder: Path) -> Kind:
    """A file of a converted model: the model is converted again."""
    content = {"config.json": b"{}", "model.safetensors": random.Random(0).randbytes(2000)}

    def convert() -> None:
        with atomic_folder(folder) as staging:
            for name, one in content.items():
                (staging / name).write_bytes(one)

    def is_right(_file: Path) -> bool:
        create_once(folder, convert)
        return {name: (folder / name).read_bytes() for name in content} == content

    convert()
    return Kind(sorted(folder.iterdir()), is_right)
