"""Settings of surveys and of the service. They do not change results, except for the rounding of `parallelism`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, IPvAnyNetwork, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from theodolite.errors import SpecError
from theodolite.model_aliases import MODEL_ALIASES

_MOST_SECONDS = 10_000_000
"""The largest time to wait, 116 days; timers of libraries overflow far above it."""


class Settings(BaseSettings):
    """Settings from `THEODOLITE_…` environment variables; the command line overrides them."""

    model_config = SettingsConfigDict(env_prefix="THEODOLITE_", env_ignore_empty=True, extra="ignore")

    store: str = Field(
        "./theodolite-store", pattern=r"[^/\s]", description="Store: a folder, or a file://, s3://, gs:// or az:// URL."
    )
    ray_address: str | None = Field(None, description="Address of a Ray cluster; none starts Ray on this machine.")
    dask_address: str | None = Field(None, description="Address of a Dask scheduler; none uses this process's threads.")
    replicas: int | None = Field(
        None, ge=1, description="Number of replicas of the model; none is as many as fit on the GPUs, or one on a CPU."
    )
    gpus_per_replica: int | None = Field(
        None, ge=0, description="GPUs of each replica; none is one if the cluster has GPUs."
    )
    parallelism: Literal["auto", "pipeline", "tensor"] = Field(
        "auto",
        description="How a replica uses several GPUs: tensor (each GPU holds a shard of every matrix), pipeline (each "
        "GPU holds some of the blocks, and the GPUs work in turn), or auto (tensor if the model supports it).",
    )
    cache: Path = Field(
        Path(os.path.expanduser("~/.cache/theodolite")), description="Folder of converted models on each node."
    )
    nodes_wait_seconds: float = Field(
        0,
        ge=0,
        le=_MOST_SECONDS,
        description="Time in which a growing cluster may add a node for a survey; 0 is a cluster of fixed size.",
    )
    replicas_wait_seconds: float = Field(
        60,
        gt=0,
        le=_MOST_SECONDS,
        description="Time in which all replicas may start before a survey begins with those that have started.",
    )
    spot_checks: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Share of the prompts that a survey compares with plain Hugging Face while it runs; 0 is none. "
        "Replicas of several processes, which share a model, make no spot checks.",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port on which a survey serves its metrics; 0 is any free port, none disables metrics.",
    )
    metrics_targets: Path | None = Field(
        None, description="Folder in which a survey writes the address of its metrics, for Prometheus' file discovery."
    )
    metrics_linger_seconds: float = Field(
        0, ge=0, le=_MOST_SECONDS, description="Time for which a survey serves its metrics after its end."
    )
    jobs_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="URL of the Ray dashboard that gets survey jobs, http://HEAD:8265; none refuses survey jobs.",
    )
    ray_token: SecretStr | None = Field(
        None, description="Token of the Ray cluster; the default is the token of Ray's own client."
    )
    driver_memory: int | None = Field(
        None,
        ge=1,
        le=2**48,  # Ray counts in units of 1/10,000 byte, in 64 bits
        description="Bytes of memory that each Ray job reserves on Ray's head node for its driver; Ray jobs wait until "
        "they fit. None reserves nothing.",
    )
    jobs_per_token: int = Field(4, ge=1, description="Maximum number of unfinished survey jobs of one bearer token.")
    job_prompts: int = Field(100_000, ge=1, description="Maximum number of prompts in a submitted spec.")
    job_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens in the prompts of a survey; none is no limit."
    )
    upload_bytes: int = Field(
        16 * 2**20,
        ge=0,
        description="Maximum size of a prompt file that a client uploads; 0 accepts none. The uploads of a bearer "
        "token may have 16 times as many bytes, and those of the store 256 times.",
    )
    upload_days: int = Field(
        90, ge=1, le=36_500, description="Days after which an upload that no unfinished survey job names is removed."
    )
    models_allowed: list[str] = Field(
        list(MODEL_ALIASES),
        description="Models and adapters that submitted specs may name: aliases, hub ids with * as "
        "a wildcard (OWNER/*), and paths on the nodes, for which a pattern must begin with /. The default is all "
        "aliases; [] allows none. An adapter that is allowed brings the base that it names.",
    )
    datasets_allowed: list[str] = Field(
        default_factory=list, description="Hub datasets that submitted specs may read, with * as a wildcard."
    )
    files_allowed: Path | None = Field(
        None, description="Folder on every node whose files submitted specs may read; none allows no files."
    )
    hosts: list[str] = Field(
        default_factory=list, description="Host names of the service that requests may use, besides loopback."
    )
    prompts_shown: bool = Field(
        True,
        description="Whether the service sends the texts of prompt sets. It sends scores in any case, and the "
        "sentences and nouns that the results of the analysis words contain.",
    )
    activation_bytes: int = Field(
        256 * 2**20,
        ge=0,
        description="Maximum size of a response with activations, which callers with the scope activations may read; 0 "
        "sends none. Without the texts of prompts, the service sends none either.",
    )
    proxies: list[IPvAnyNetwork] = Field(
        default_factory=list,
        description="Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto the service trusts.",
    )
    requests_per_minute: int = Field(
        1200,
        ge=1,
        description="Maximum number of requests to the API in a minute, for each bearer token, and for each client "
        "address without one.",
    )
    access_log: bool = Field(
        True,
        description="Whether the service logs each request to standard error, as one line of JSON.",
    )
    results_cache_bytes: int = Field(48 * 2**20, ge=0, description="Size of the service's cache of results, in bytes.")
    remote_code_allowed: list[str] = Field(
        default_factory=list, description="Models whose own code may run if a spec requests it."
    )

    @field_validator("jobs_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        """Raise ValueError for a URL without a host, or with a port that is no number."""
        try:
            has_host = value is None or bool(urlsplit(value).hostname and urlsplit(value).port != 0)
        except ValueError:  # of a port that is no number, or of an IPv6 address
            has_host = False
        if not has_host:
            raise ValueError("must be http://HOST:PORT")
        return value


def read_settings(**given: Any) -> Settings:
    """Return the settings of the environment, overridden by the arguments that are not None.

    Raises:
        SpecError: a variable or an argument is invalid. The message names it without its value, which may be secret.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = [f"{_setting_name(problem['loc'][0], given)}: {problem['msg']}" for problem in error.errors()]
        raise SpecError("\n".join(problems)) from None
    except SettingsError as error:  # only lists, which must be JSON
        match = re.search(r'field "(\w+)"', str(error))
        name = _setting_name(match[1], given) if match else "a THEODOLITE_… variable"
        raise SpecError(f"""{name}: must be a JSON list, such as '["one", "two"]'""") from None


def _setting_name(field: int | str, given: Mapping[str, Any]) -> str:
    return str(field) if given.get(str(field)) is not None else f"THEODOLITE_{str(field).upper()}"
