"""Settings: where and how a survey runs. Nothing here can change a number."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read from `THEODOLITE_…` environment variables; the command line overrides them."""

    model_config = SettingsConfigDict(env_prefix="THEODOLITE_", extra="ignore")

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
    cache: Path = Field(
        Path.home() / ".cache" / "theodolite", description="Where converted models are kept, on each node."
    )
    remote_code_allowed: list[str] = Field(
        default_factory=list, description="Models whose own code may run when a spec asks for it."
    )
