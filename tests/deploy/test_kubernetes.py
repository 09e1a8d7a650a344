"""The manifests, as each overlay gives them: against schemas, against each other, and against what they start."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from support.deploy_commands import assert_fetches_what_surveys_read, assert_understood, promtool
from support.rendering import Thing, render

from theodolite import __version__
from theodolite.api.guards import LOOPBACK
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted((ROOT / "deploy/kubernetes/overlays").iterdir())
RAY_SCHEMA = json.loads((Path(__file__).parent / "ray.io_v1.schema.json").read_text())
KUBERNETES = "1.34"
BY_HAND = {"store-credentials", "hub-token", "metrics-token"}
"""Secrets that settings.yaml tells people to make; pods start without them."""

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
IMAGES = {f"theodolite-{name}:{__version__}" for name in ("api", "jobs", "capture")} | {COMPOSE["prometheus"]["image"]}


@pytest.fixture(params=OVERLAYS, ids=lambda folder: folder.name)
def overlay(request) -> Path:
    return request.param


@pytest.fixture
def things(overlay) -> list[Thing]:
    return render(overlay)


def test_overlays_are_as_the_real_kustomize_renders_them(overlay, things):
    kubectl = shutil.which("kubectl")
    found = kubectl and subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True).stdout
    if not re.search(r"Kustomize Version: v5", found or ""):
        pytest.skip("needs kubectl with kustomize 5, which neither Debian nor PyPI has")
    real = subprocess.run([kubectl, "kustomize", overlay], capture_output=True, text=True, check=True).stdout
    assert by_name(things) == by_name(yaml.safe_load_all(real))


def test_every_object_is_what_its_schema_allows(things):
    for thing in things:
        if thing["apiVersion"] == "ray.io/v1":
            jsonschema.Draft202012Validator(RAY_SCHEMA).validate(thing)
        else:
            check_core(thing)
    for owner, template in pods(things):
        check_core({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": owner}, "template": template})


def test_a_field_that_nobody_knows_is_refused(things):
    cluster = one(things, "RayCluster")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(AssertionError, match="imagePullPolice"):
        test_every_object_is_what_its_schema_allows([cluster])
    job = one(things, "RayJob")
    job["spec"] = {"entrypoint": "theodolite", "clusterSelector": {"ray.io/cluster": "theodolite"}, "backoffLimit": 2}
    with pytest.raises(jsonschema.ValidationError):
        test_every_object_is_what_its_schema_allows([job])


def test_pods_may_do_no_more_than_the_namespace_allows(things):
    assert one(things, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for owner, template in pods(things):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"], owner
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        # Only Ray's autoscaler, in the head's pod, and Prometheus have something to ask of Kubernetes.
        assert pod.get("automountServiceAccountToken") is False or is_head(template) or owner == "prometheus", owner
        assert not any("hostPath" in volume for volume in pod["volumes"]), owner
        for container in pod["containers"]:
            confined(container["securityContext"])
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), owner
            assert "memory" in container["resources"]["limits"], owner
            assert container["image"] in IMAGES, owner
            if owner != "fetch-model":  # which ends by itself
                assert {"readinessProbe", "livenessProbe"} <= container.keys(), owner
    confined(one(things, "RayCluster")["spec"]["autoscalerOptions"]["securityContext"])


def test_whatever_is_referred_to_is_there(things):
    names = {kind: {thing["metadata"]["name"] for thing in of_kind(things, kind)} for kind in kinds(things)}
    labels = [template["metadata"]["labels"] for _, template in pods(things)]
    for owner, template in pods(things):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert claim["claimName"] in names["PersistentVolumeClaim"], owner
            if config := volume.get("configMap"):
                assert config["name"] in names["ConfigMap"], owner
            if secret := volume.get("secret"):
                assert secret["secretName"] in BY_HAND, owner
                assert secret["optional"], owner
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys(), owner
            for source in container.get("envFrom", []):
                if "secretRef" in source:
                    assert source["secretRef"]["name"] in BY_HAND, owner
                    assert source["secretRef"]["optional"], owner
                else:
                    assert source["configMapRef"]["name"] in names["ConfigMap"], owner
    for service in of_kind(things, "Service"):
        assert service["spec"]["selector"] in labels
    for policy in of_kind(things, "PodDisruptionBudget"):
        assert policy["spec"]["selector"]["matchLabels"] in labels
    for policy in of_kind(things, "NetworkPolicy"):
        expression = policy["spec"]["podSelector"].get("matchExpressions", [])
        chosen = policy["spec"]["podSelector"].get("matchLabels", {}) | {
            rule["key"]: rule["values"][0] for rule in expression
        }
        assert not chosen or chosen in labels
    (rule,) = one(things, "Ingress")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] in names["Service"]


def test_programs_understand_their_commands(things):
    for _, template in pods(things):
        for container in template["spec"]["containers"]:
            if "command" in container:
                assert_understood(container["command"])
    assert_understood(one(things, "RayJob")["spec"]["entrypoint"].split())


def test_no_secret_is_written_down(things):
    assert not list(of_kind(things, "Secret"))
    for _, template in pods(things):
        for container in template["spec"]["containers"]:
            written = [variable["name"] for variable in container.get("env", []) if "valueFrom" not in variable]
            assert set(written) <= {"THEODOLITE_HOSTS"}
    for settings in of_kind(things, "ConfigMap"):
        assert not [name for name in settings["data"] if re.search("TOKEN$|SECRET|PASSWORD|ACCESS_KEY", name)]


def test_every_node_of_ray_and_the_service_show_one_token(things):
    cluster = one(things, "RayCluster")
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    variable = environment_of_api(things)["RAY_AUTH_TOKEN"]
    # KubeRay calls the Secret like the cluster.
    secret = {"name": cluster["metadata"]["name"], "key": "auth_token"}
    assert variable == {"secretKeyRef": secret}
    jobs_url = one(things, "ConfigMap", "settings")["data"]["THEODOLITE_JOBS_URL"]
    assert jobs_url == f"http://{cluster['metadata']['name']}-head-svc:8265"
    for spec in (cluster["spec"], one(things, "RayJob")["spec"]["rayClusterSpec"]):
        assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_nothing_but_drivers_runs_on_the_head(things):
    params = one(things, "RayCluster")["spec"]["headGroupSpec"]["rayStartParams"]
    assert (params["num-cpus"], params["num-gpus"]) == ("0", "0")


def test_workers_have_the_gpus_that_replicas_need(things):
    settings = one(things, "ConfigMap", "settings")["data"]
    for group in one(things, "RayCluster")["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        container = group["template"]["spec"]["containers"][0]
        gpus, each = (
            int(container["resources"]["limits"].get("nvidia.com/gpu", 0)),
            int(settings["THEODOLITE_GPUS_PER_REPLICA"]),
        )
        assert container["image"].startswith("theodolite-capture:" if gpus else "theodolite-jobs:")
        assert gpus % each == 0 if each else gpus == 0
        # The autoscaler counts what a node will have from the limits, Ray what it has.
        assert container["resources"]["limits"]["cpu"] == container["resources"]["requests"]["cpu"]


def test_a_batch_survey_has_a_cluster_like_the_long_lived_one(things):
    job = one(things, "RayJob")["spec"]
    assert job["rayClusterSpec"] == one(things, "RayCluster")["spec"]
    assert job["suspend"], "applying an overlay must start no survey"
    mounts = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "survey", "mountPath": "/survey", "readOnly": True} in mounts
    assert job["entrypoint"].startswith("theodolite survey /survey/survey.yaml ")
    parse_spec(yaml.safe_load(one(things, "ConfigMap", "survey")["data"]["survey.yaml"]))


def test_models_are_fetched_as_surveys_look_for_them(things):
    for job in of_kind(things, "Job"):
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert_fetches_what_surveys_read(command)
        model = one(things, "ConfigMap", "model")["data"]
        assert re.fullmatch("[0-9a-f]{40}", model["REVISION"])
    for owner, template in pods(things):
        for container in template["spec"]["containers"]:
            for mount in container["volumeMounts"]:
                assert mount["name"] != "models" or mount.get("readOnly") or owner == "fetch-model", owner


def test_the_service_answers_to_the_names_it_is_called_by(things):
    hosts = json.loads(environment_of_api(things)["THEODOLITE_HOSTS"])
    assert "$(POD_IP)" in hosts, "Prometheus asks each pod by its address"
    ingress = one(things, "Ingress")["spec"]
    assert {rule["host"] for rule in ingress["rules"]} <= set(hosts)
    assert [host for tls in ingress["tls"] for host in tls["hosts"]] == [rule["host"] for rule in ingress["rules"]]
    container = one(things, "Deployment", "api")["spec"]["template"]["spec"]["containers"][0]
    for probe in ("readinessProbe", "livenessProbe"):
        (header,) = container[probe]["httpGet"]["httpHeaders"]
        assert header["name"] == "Host"
        assert header["value"] in LOOPBACK


def test_prometheus_watches_all_that_it_does_elsewhere(things, overlay, tmp_path):
    content = one(things, "ConfigMap", "prometheus")["data"]["prometheus.yml"]
    here, elsewhere = yaml.safe_load(content), yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    names = [[job["job_name"] for job in config["scrape_configs"]] for config in (here, elsewhere)]
    assert names[0] == names[1]
    (rules,) = one(things, "ConfigMap", "prometheus-rules")["data"].values()
    assert yaml.safe_load(rules) == yaml.safe_load((ROOT / "deploy/prometheus/rules/theodolite.yml").read_text())
    settings = one(things, "ConfigMap", "settings")["data"]
    (found,) = here["scrape_configs"][1]["file_sd_configs"]
    assert found["files"] == [f"{settings['THEODOLITE_METRICS_TARGETS']}/*.json"]
    for job in here["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None):  # Debian's promtool is built without them
            job["static_configs"] = [{"targets": ["10.0.0.1:8000"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(here))
    promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")


def test_settings_are_ones_that_theodolite_knows(things):
    names = {
        name.removeprefix("THEODOLITE_").lower()
        for name in one(things, "ConfigMap", "settings")["data"]
        if name.startswith("THEODOLITE_")
    }
    assert names <= Settings.model_fields.keys()


def check_core(thing: Thing) -> None:
    """Hold an object against Kubernetes' own schema, which allows no unknown field."""
    try:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:  # whose text is the whole schema
        raise AssertionError(f"{thing['kind']} {thing['metadata']['name']}: {error.message}") from None


def confined(context: Any) -> None:
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pods(things: list[Thing]) -> Iterator[tuple[str, Thing]]:
    """Yield every pod template with its owner's name."""
    for thing in things:
        spec = thing.get("spec", {})
        if "template" in spec:
            yield thing["metadata"]["name"], spec["template"]
        cluster = spec if thing["kind"] == "RayCluster" else spec.get("rayClusterSpec", {})
        for group in [cluster.get("headGroupSpec"), *cluster.get("workerGroupSpecs", [])]:
            if group:
                yield f"{thing['kind']} {thing['metadata']['name']}", group["template"]


def environment_of_api(things: list[Thing]) -> dict[str, Any]:
    (container,) = one(things, "Deployment", "api")["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def is_head(template: Thing) -> bool:
    return template["spec"]["containers"][0]["name"] == "ray-head"


def kinds(things: list[Thing]) -> set[str]:
    return {thing["kind"] for thing in things}


def of_kind(things: list[Thing], kind: str) -> Iterator[Thing]:
    return (thing for thing in things if thing["kind"] == kind)


def one(things: list[Thing], kind: str, name: str | None = None) -> Thing:
    (found,) = [thing for thing in of_kind(things, kind) if name in (None, thing["metadata"]["name"])]
    return found


def by_name(things: Any) -> dict[tuple[str, str], Thing]:
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}
