"""Settings of surveys and of the service. None can change a result, except for the rounding of `parallelism`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from theodolite.errors import SpecError


class Settings(BaseSettings):
    """Read from `THEODOLITE_…` environment variables; the command line overrides them."""

    model_config = SettingsConfigDict(env_prefix="THEODOLITE_", env_ignore_empty=True, extra="ignore")

    store: str = Field(
        "./theodolite-store", pattern=r"[^/\s]", description="Folder or file://, s3://, gs://, az:// URL."
    )
    ray_address: str | None = Field(None, description="Ray cluster; none starts Ray inside this machine.")
    dask_address: str | None = Field(None, description="Dask scheduler; none uses this process's threads.")
    replicas: int | None = Field(
        None,
        ge=1,
        description="Copies of the model; none is one for each placement on a GPU, or one on a CPU.",
    )
    gpus_per_replica: int | None = Field(
        None, ge=0, description="GPUs of one replica; none is one where there are GPUs."
    )
    parallelism: Literal["auto", "pipeline", "tensor"] = Field(
        "auto",
        description="How a replica of several GPUs uses them: tensor (each holds a part of every matrix), pipeline "
        "(each holds some of the blocks, and they work in turn), or auto: tensor for models that can be cut so.",
    )
    cache: Path = Field(
        Path.home() / ".cache" / "theodolite", description="Where converted models are kept, on each node."
    )
    nodes_wait_seconds: float = Field(
        0,
        ge=0,
        description="How long a cluster that grows may take to bring a node for a survey; 0: it does not grow.",
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Where a survey serves its metrics; 0 is any free port, none is nowhere."
    )
    metrics_targets: Path | None = Field(
        None, description="Folder in which a survey says where its metrics are, for Prometheus' file discovery."
    )
    metrics_linger_seconds: float = Field(
        0, ge=0, description="How long a survey's metrics can still be asked for when it has ended."
    )
    jobs_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="Dashboard of the Ray cluster that jobs are submitted to, http://HEAD:8265; none takes no jobs.",
    )
    ray_token: SecretStr | None = Field(None, description="The cluster's token; by default where Ray keeps it.")
    jobs_per_token: int = Field(4, ge=1, description="Unfinished jobs of one token.")
    job_prompts: int = Field(100_000, ge=1, description="Prompts in a submitted spec.")
    job_tokens: int | None = Field(None, ge=1, description="Tokens in all prompts of one survey; none is no limit.")
    models_allowed: list[str] = Field(
        default_factory=list,
        description="Models that submitted specs may name, with * for any letters; none is any model of the hub. Local "
        "folders and .gguf files must be listed.",
    )
    datasets_allowed: list[str] = Field(
        default_factory=list, description="Hub datasets that submitted specs may read, with * for any letters."
    )
    files_allowed: Path | None = Field(
        None, description="Folder whose files submitted specs may read, on every node; none allows no files."
    )
    hosts: list[str] = Field(
        default_factory=list, description="Names that the service is called by, beside those of loopback."
    )
    results_cache_bytes: int = Field(48 * 2**20, ge=0, description="Size of the service's cache of results, in bytes.")
    answer_numbers: int = Field(
        250_000, ge=1, description="Numbers in one answer about a result group; the default is about 5 MB of JSON."
    )
    answer_rows: int = Field(
        250_000, ge=1, description="Rows of a table that the service decodes at once; the default is about 50 MB."
    )
    remote_code_allowed: list[str] = Field(
        default_factory=list, description="Models whose own code may run when a spec asks for it."
    )


def read_settings(**given: Any) -> Settings:
    """Return the environment's settings, overridden by those that are given and not None.

    Raises:
        SpecError: a variable, or what is given, is not allowed; names it, and never says a value, which may be secret.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = [f"{_named(problem['loc'][0], given)}: {problem['msg']}" for problem in error.errors()]
        raise SpecError("\n".join(wrong)) from None
    except SettingsError as error:  # of lists alone, which are written as JSON
        found = re.search(r'field "(\w+)"', str(error))
        name = _named(found[1], given) if found else "a THEODOLITE_… variable"
        raise SpecError(f"""{name}: must be a list as JSON has it, such as '["one", "two"]'""") from None


def _named(field: int | str, given: Mapping[str, Any]) -> str:
    return str(field) if given.get(str(field)) is not None else f"THEODOLITE_{str(field).upper()}"
