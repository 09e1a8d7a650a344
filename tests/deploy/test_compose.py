"""The compose file: against its specification, against the repository, and against the programs it starts."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support.deploy_commands import assert_fetches_what_surveys_read, assert_understood
from support.each import each

from theodolite import __version__
from theodolite.settings import Settings

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"models", "s3-bucket"}
OURS = {name for name, service in SERVICES.items() if "build" in service}
RAY = {"head", "worker-cpu", "worker-gpu"}
DASK = {"dask-scheduler", "dask-worker"}
STAGES = {
    text.split()[2]: text for text in re.split(r"^FROM ", (ROOT / "deploy/Dockerfile").read_text(), flags=re.M)[1:]
}


def test_it_is_a_compose_file():
    command = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_services_start_after_what_they_need():
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert needed in ONE_SHOT, name
            else:
                assert how["condition"] == "service_healthy", name
                assert has_health_check(needed), name
            # What only some profiles have may be missing, except among services of that profile.
            assert how.get("required", True) or "profiles" in SERVICES[needed], name
            if how.get("required", True):
                assert set(SERVICES[needed].get("profiles", [])) <= set(service.get("profiles", [])), name


def test_everything_that_stays_up_is_watched_and_restarted():
    for name in SERVICES.keys() - ONE_SHOT:
        assert has_health_check(name), name
        assert SERVICES[name]["restart"] == "unless-stopped"
    for name in ONE_SHOT:
        assert SERVICES[name]["restart"] == "no"


def test_only_the_service_and_the_monitors_are_published_and_on_loopback_unless_told():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert {name: [port.rsplit(":", 1)[1] for port in ports] for name, ports in published.items()} == {
        "api": ["8000"],
        "prometheus": ["9090"],
        "grafana": ["3000"],
    }
    for ports in published.values():
        assert all(re.match(r"(127\.0\.0\.1|\$\{\w+_BIND:-127\.0\.0\.1\}):", port) for port in ports)
    assert SERVICES["grafana"]["networks"] == ["published"], "Grafana has no business with Dask or Ray"
    assert all(SERVICES[name]["networks"] == ["cluster"] for name in RAY | DASK)


def test_every_node_of_ray_and_the_service_show_one_token():
    for name in RAY | {"api"}:
        environment = SERVICES[name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token", name
        assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token", name
        assert "ray_token" in SERVICES[name]["secrets"], name
    for name, service in SERVICES.items():
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys(), name
    assert all(secret["file"].startswith("./deploy/secrets/") for secret in COMPOSE["secrets"].values())


def test_containers_may_do_little():
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service
        if name in OURS:
            assert "USER 10001:10001" in STAGES[service["build"]["target"]], name


def test_images_are_pinned():
    for name, service in SERVICES.items():
        if name in OURS:
            assert service["image"] == f"theodolite-{service['build']['target']}:{__version__}"
        else:
            assert re.fullmatch(r"\w+/\w+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", service["image"]), name


def test_a_rehearsal_runs_images_of_its_own():
    """Images of a rehearsal can have another base, and must not be pushed as those of this version."""
    changed = yaml.safe_load((ROOT / "deploy/rehearsal/compose.yml").read_text())["services"]
    for name in OURS - ONE_SHOT - {"worker-gpu"}:
        assert changed[name]["image"] == f"theodolite-{SERVICES[name]['build']['target']}:rehearsal", name
    assert 'f"theodolite-{target}:rehearsal"' in (ROOT / "deploy/rehearsal/engine.py").read_text()


def test_logs_are_rotated_whatever_the_default_of_the_engine_is():
    for name, service in SERVICES.items():
        assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m"}}, name


def test_only_workers_have_the_memory_of_the_machine():
    unlimited = {name for name in OURS - ONE_SHOT if "mem_limit" not in SERVICES[name]}
    assert unlimited == {"worker-cpu", "worker-gpu"}


def test_every_container_may_open_many_files():
    for name, service in SERVICES.items():
        assert service["ulimits"] == {"nofile": {"soft": 65536, "hard": 65536}}, name


def test_everything_that_is_mounted_is_there():
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("./"):
                assert (ROOT / source).exists(), name
                assert volume.endswith(":ro"), name
            else:
                used.add(source)
            assert target.startswith("/"), name
    assert used == COMPOSE["volumes"].keys()
    assert {network for service in SERVICES.values() for network in service.get("networks", [])} == COMPOSE[
        "networks"
    ].keys()


def test_models_are_written_by_one_service_and_asked_for_by_no_other():
    for name, service in SERVICES.items():
        mounts = [volume for volume in service.get("volumes", []) if volume.startswith("models:")]
        assert mounts in ([], ["models:/models:ro"]) or name == "models", name
        if name in RAY:
            assert service["environment"]["HF_HUB_OFFLINE"].strip("${}").removeprefix("HF_HUB_OFFLINE:-") == "1"
    assert_fetches_what_surveys_read(SERVICES["models"]["entrypoint"])


def test_whoever_touches_the_store_knows_where_it_is():
    stores = {
        name: service["environment"]
        for name, service in SERVICES.items()
        if "store:/store" in service.get("volumes", [])
    }
    assert stores.keys() == RAY | {"dask-worker", "api"}
    assert {environment["THEODOLITE_STORE"] for environment in stores.values()} == {
        "${THEODOLITE_STORE:-file:///store}"
    }
    assert all(environment.keys() >= {"AWS_ENDPOINT", "AWS_ALLOW_HTTP"} for environment in stores.values())


def test_nothing_but_drivers_runs_on_the_head():
    assert {"--head", "--num-cpus=0", "--num-gpus=0"} <= set(SERVICES["head"]["command"])


def test_either_kind_of_worker_belongs_to_a_profile():
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {
        "worker-cpu": ["cpu"],
        "worker-gpu": ["gpu"],
        "models": ["models"],
        "s3": ["s3"],
        "s3-bucket": ["s3"],
    }
    devices = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]


@each("name", sorted(OURS - ONE_SHOT))
def test_programs_understand_their_commands(name):
    command = SERVICES[name]["command"]
    assert all(isinstance(word, str) and not re.search(r"[$`;&|<>]", word) for word in command), "no shell reads it"
    assert_understood(command)


def test_models_are_fetched_by_name_and_commit():
    assert_understood([*SERVICES["models"]["entrypoint"], "Qwen/Qwen2.5-7B-Instruct", "--revision", "0" * 40])


def test_settings_are_ones_that_theodolite_knows():
    for name, service in SERVICES.items():
        given = {
            key.removeprefix("THEODOLITE_").lower()
            for key in service.get("environment", {})
            if key.startswith("THEODOLITE_")
        }
        assert given <= Settings.model_fields.keys(), name


def has_health_check(name: str) -> bool:
    service = SERVICES[name]
    return "test" in service.get("healthcheck", {}) or (
        name in OURS and "HEALTHCHECK" in STAGES[service["build"]["target"]]
    )
