"""The hashes with which pip checks what it installs in the images: they agree with the requirements and constraints."""

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as metadata_version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.each import each
from support.extras import PROJECT

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
FOLDER = ROOT / "deploy/requirements"
PYTHON = re.search(r"^ARG PYTHON=python:(\d+\.\d+\.\d+)-", DOCKERFILE, flags=re.M)[1]
MACHINES = [
    {
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "python_full_version": PYTHON,
        "python_version": PYTHON.rpartition(".")[0],
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    for machine in ("x86_64", "aarch64")
]
IMAGES = {
    "api": (("api",), ("service",)),
    "jobs": (("torch-cpu", "jobs"), ("jobs",)),
    "capture": (("torch-cuda", "jobs"), ("jobs",)),
}
"""The files of hashes of each image, and the extras that it installs."""


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return the requirements of a file with their hashes."""
    text = re.sub(r"^#.*\n", "", (FOLDER / f"{name}.txt").read_text(), flags=re.M).replace("\\\n", "")
    split = [line.split(" --hash=") for line in text.splitlines()]
    return [(Requirement(first), [one.strip() for one in hashes]) for first, *hashes in split]


def versions(name: str, machine: dict[str, str]) -> dict[str, Version]:
    """Return the versions that pip installs from a file on a machine."""
    found: dict[str, Version] = {}
    for requirement, _ in entries(name):
        if requirement.marker is None or requirement.marker.evaluate(machine):
            (one,) = requirement.specifier
            assert canonicalize_name(requirement.name) not in found
            found[canonicalize_name(requirement.name)] = Version(one.version)
    return found


def installed(image: str, machine: dict[str, str]) -> dict[str, Version]:
    """Return the versions that an image has; its files agree on them."""
    found: dict[str, Version] = {}
    for file in IMAGES[image][0]:
        new = versions(file, machine)
        assert all(found[name] == new[name] for name in found.keys() & new.keys())
        found |= new
    return found


@each("file", sorted(FOLDER.glob("*.txt")))
def test_each_package_has_one_version_and_its_hashes(file):
    assert entries(file.stem)
    for requirement, hashes in entries(file.stem):
        assert [one.operator for one in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), requirement


@each("machine", MACHINES)
@each("image", IMAGES)
def test_an_image_has_the_tested_versions_of_all_that_its_extras_need(image, machine):
    """Fails after a change of pyproject.toml or constraints.txt: run `make hashes`."""
    has, extras = installed(image, machine), IMAGES[image][1]
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            own = has.get(canonicalize_name(name))
            assert own is None or own.public == version, name
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    for name, version in has.items():
        if is_here(name, version):  # then its own requirements are known
            lines += requires(name) or []
    needs = [
        need for need in map(Requirement, lines) if not need.marker or need.marker.evaluate({**machine, "extra": ""})
    ]
    assert len(needs) > len(PROJECT["dependencies"]) * 2
    for need in needs:
        assert has[canonicalize_name(need.name)] in need.specifier, need


def test_each_requirement_has_a_tested_version():
    """A library such as numcodecs writes the bytes of shards, so images must have the version of the tests."""
    pinned = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().split("\n")}
    extras = [*IMAGES["api"][1], *IMAGES["jobs"][1]]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    assert not {canonicalize_name(Requirement(line).name) for line in lines} - pinned


def is_here(name: str, version: Version) -> bool:
    """Return whether this version of a package is installed here; a part behind + such as `cpu` does not count."""
    try:
        return Version(metadata_version(name)).public == version.public
    except PackageNotFoundError:
        return False


@each("machine", MACHINES)
def test_cuda_is_in_the_capture_image_alone(machine):
    cuda = re.compile("cuda-|nvidia-|triton")
    assert any(map(cuda.match, installed("capture", machine)))
    assert not any(map(cuda.match, [*installed("api", machine), *installed("jobs", machine)]))
    assert installed("jobs", machine)["torch"].local == "cpu"


def test_pip_checks_all_that_it_installs():
    commands = re.findall(r"pip install [^;&\n]*", DOCKERFILE)
    exceptions = ["pip install --no-deps --no-cache-dir /wheel/*.whl", 'pip install "$(grep']  # own wheel; other CUDA
    unchecked = [one for one in commands if "--require-hashes -r " not in one]
    assert {one for one in unchecked if not one.startswith(tuple(exceptions))} == set()
    used = {Path(word).stem for one in commands for word in one.split() if word.endswith(".txt")} - {"torch-cuda.txt)"}
    assert used == {file.stem for file in FOLDER.iterdir()}
    assert "--no-build-isolation" in DOCKERFILE, "else pip fetches what builds the wheel without its hash"
