"""The manifests, as kubectl renders each overlay: against schemas, against each other, and against what they start."""

import json
import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.deploy_commands import assert_understood
from support.kubernetes_objects import (
    check_core,
    components_of,
    config,
    confined,
    environment_of_api,
    is_head,
    kinds,
    merged,
    of_kind,
    one,
    pods,
)
from support.rendering import render
from transformers import LlamaConfig, Qwen2Config

from theodolite import __version__
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.models.sharding import choose_ranks

FOLDER, ROOT = Path(__file__).parent, Path(__file__).parents[2]
KUBERAY = {"1.6": "ray.io_v1.schema.json", "1.7": "ray.io_v1-1.7.json"}
BY_HAND = {"registry", "store-credentials", "hub-token", "metrics-token"}
"""Secrets that base/kustomization.yaml tells people to make; pods start without them."""

METADATA = [ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200")]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
IMAGES = {f"theodolite-{name}:{__version__}" for name in ("api", "jobs", "capture")} | {COMPOSE["prometheus"]["image"]}
REGISTRY = "registry.example.org/survey"

# Shapes from the models' config.json on the hub.
MODELS = {
    "Qwen/Qwen2.5-32B-Instruct": Qwen2Config(
        hidden_size=5120, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8, intermediate_size=27648
    ),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944
    ),
    "smollm2-135m-instruct": LlamaConfig(
        hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536
    ),
}


@pytest.fixture(params=KUBERAY)
def kuberay(request) -> dict[str, Any]:
    """Return the schema of a version of KubeRay."""
    first, *later = list(KUBERAY)[: list(KUBERAY).index(request.param) + 1]
    schema = json.loads((FOLDER / KUBERAY[first]).read_text())
    for version in later:
        schema = merged(schema, json.loads((FOLDER / KUBERAY[version]).read_text()))
    return schema


def test_every_object_is_what_its_schema_allows(things, kuberay):
    for thing in things:
        if thing["apiVersion"] == "ray.io/v1":
            jsonschema.Draft202012Validator(kuberay).validate(thing)
        else:
            check_core(thing)
    for owner, template in pods(things):
        check_core({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": owner}, "template": template})


def test_a_field_that_nobody_knows_is_refused(things, kuberay):
    cluster = one(things, "RayCluster")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(AssertionError, match="imagePullPolice"):
        test_every_object_is_what_its_schema_allows([cluster], kuberay)
    job = one(things, "RayJob")
    job["spec"] = {"entrypoint": "theodolite", "clusterSelector": {"ray.io/cluster": "theodolite"}, "backoffLimit": 2}
    with pytest.raises(jsonschema.ValidationError):
        test_every_object_is_what_its_schema_allows([job], kuberay)


def test_a_field_of_a_newer_kuberay_is_refused_by_the_older(things, kuberay):
    cluster = one(things, "RayCluster")
    cluster["spec"]["networkPolicy"] = {"mode": "DenyAll"}
    assert jsonschema.Draft202012Validator(kuberay).is_valid(cluster) == ("networkPolicy" in json.dumps(kuberay))
    cluster["spec"]["networkPolicies"] = cluster["spec"].pop("networkPolicy")
    assert not jsonschema.Draft202012Validator(kuberay).is_valid(cluster)


def test_kuberay_refuses_to_upgrade_the_cluster_of_a_job(things, kuberay):
    job = one(things, "RayJob")
    job["spec"]["rayClusterSpec"]["upgradeStrategy"] = {"type": "Recreate"}
    assert not jsonschema.Draft202012Validator(kuberay).is_valid(job)


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
            needed = {"cpu", "memory", *(["ephemeral-storage"] if owner != "prometheus" else [])}  # which has a volume
            assert needed <= container["resources"]["requests"].keys(), owner
            assert "memory" in container["resources"]["limits"], owner
            assert container["image"].removeprefix(f"{REGISTRY}/") in IMAGES, owner
            if owner != "fetch-model":  # which ends by itself
                assert {"readinessProbe", "livenessProbe"} <= container.keys(), owner
    confined(one(things, "RayCluster")["spec"]["autoscalerOptions"]["securityContext"])


def test_whatever_is_referred_to_is_there(things):
    names = {kind: {thing["metadata"]["name"] for thing in of_kind(things, kind)} for kind in kinds(things)}
    labels = [template["metadata"]["labels"] for _, template in pods(things)]
    for owner, template in pods(things):
        assert template["spec"].get("serviceAccountName", "default") in names["ServiceAccount"] | {"default"}, owner
        for secret in template["spec"].get("imagePullSecrets", []):
            assert secret["name"] in BY_HAND, owner
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
    optional = {"fetch-model"}  # cpu-test fetches no model
    components = optional | {label["app.kubernetes.io/component"] for label in labels}
    for policy in of_kind(things, "PodDisruptionBudget"):
        selector = policy["spec"]["selector"]["matchLabels"]
        assert selector in labels or selector["ray.io/node-type"] == "head"
    for policy in of_kind(things, "NetworkPolicy"):
        assert components_of(policy["spec"]["podSelector"]) <= components
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
            assert set(written) <= {
                "THEODOLITE_HOSTS",
                "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE",
                "RAY_JOB_START_TIMEOUT_SECONDS",
            }
    for settings in of_kind(things, "ConfigMap"):
        assert not [name for name in settings["data"] if re.search("TOKEN$|SECRET|PASSWORD|ACCESS_KEY", name)]


def test_every_node_of_ray_and_the_service_show_one_token(things):
    cluster = one(things, "RayCluster")
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    variable = environment_of_api(things)["RAY_AUTH_TOKEN"]
    # KubeRay calls the Secret like the cluster.
    secret = {"name": cluster["metadata"]["name"], "key": "auth_token"}
    assert variable == {"secretKeyRef": secret}
    jobs_url = config(things, "settings")["THEODOLITE_JOBS_URL"]
    assert jobs_url == f"http://{cluster['metadata']['name']}-head-svc:8265"
    for spec in (cluster["spec"], one(things, "RayJob")["spec"]["rayClusterSpec"]):
        assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_nothing_but_drivers_runs_on_the_head(things):
    params = one(things, "RayCluster")["spec"]["headGroupSpec"]["rayStartParams"]
    assert (params["num-cpus"], params["num-gpus"]) == ("0", "0")


def test_workers_have_the_gpus_that_replicas_need(things):
    settings = config(things, "settings")
    for group in one(things, "RayCluster")["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        container = group["template"]["spec"]["containers"][0]
        gpus, each = (
            int(container["resources"]["limits"].get("nvidia.com/gpu", 0)),
            int(settings["THEODOLITE_GPUS_PER_REPLICA"]),
        )
        assert ("theodolite-capture:" if gpus else "theodolite-jobs:") in container["image"]
        assert gpus % each == 0 if each else gpus == 0
        # The autoscaler counts what a node will have from the limits, Ray what it has.
        assert container["resources"]["limits"]["cpu"] == container["resources"]["requests"]["cpu"]


def test_a_batch_survey_has_a_cluster_like_the_long_lived_one(things):
    job = one(things, "RayJob")["spec"]
    cluster = one(things, "RayCluster")["spec"]
    assert cluster.pop("upgradeStrategy") == {"type": "Recreate"}
    assert job["rayClusterSpec"] == cluster
    assert job["backoffLimit"] == 0, "KubeRay would also repeat a survey that ended with an error, on new nodes"
    assert "suspend" not in job, "it would stop the job"
    mounts = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "survey", "mountPath": "/survey", "readOnly": True} in mounts
    assert job["entrypoint"].startswith("theodolite survey /survey/survey.yaml ")
    spec = parse_spec(yaml.safe_load(config(things, "survey")["survey.yaml"]))
    if list(of_kind(things, "Job")):  # else the images contain the model
        fetched = config(things, "model")
        assert (spec.model.id, spec.model.revision) == (fetched["MODEL"], fetched["REVISION"])


def test_a_batch_survey_whose_head_is_lost_frees_its_nodes(things):
    """In HTTPMode, only a deadline ends a job whose head does not answer; then KubeRay removes the cluster."""
    job = one(things, "RayJob")["spec"]
    assert job["submissionMode"] == "HTTPMode", "a submitter pod would have to run in the namespace too"
    assert 0 < job["preRunningDeadlineSeconds"] < job["activeDeadlineSeconds"]
    wait = float(config(things, "settings").get("THEODOLITE_NODES_WAIT_SECONDS", 0))
    assert wait < job["preRunningDeadlineSeconds"], "the cluster's first nodes may take as long as later ones"
    assert job["shutdownAfterJobFinishes"]
    assert job["ttlSecondsAfterFinished"] < job["preRunningDeadlineSeconds"]


def test_an_overlay_alone_neither_starts_nor_stops_a_survey(overlay):
    assert "RayJob" not in kinds(render(overlay))


def test_the_model_of_the_survey_can_use_the_gpus_of_a_replica(things, monkeypatch):
    for name, value in config(things, "settings").items():
        monkeypatch.setenv(name, value)
    chosen = Settings()
    spec = parse_spec(yaml.safe_load(config(things, "survey")["survey.yaml"]))
    ranks = choose_ranks(chosen.parallelism, MODELS[spec.model.id], chosen.gpus_per_replica)
    assert ranks == max(1, chosen.gpus_per_replica), "the GPUs of a replica would work in turn"
    head = one(things, "RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    memory = head["resources"]["limits"]["memory"]
    assert head["resources"]["requests"]["memory"] == memory, "Ray promises to drivers what the limit says"
    assert 2 * chosen.driver_memory <= (int(memory.removesuffix("Gi")) - 1) * 2**30, "two drivers fit beside Ray"


def test_workers_need_gpus_with_the_memory_that_the_overlay_describes(things, overlay):
    (group,) = one(things, "RayCluster")["spec"]["workerGroupSpecs"]
    terms = group["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    found = json.dumps(terms)
    assert ("nvidia.com/gpu.memory" in found) == (
        "nvidia.com/gpu" in json.dumps(group["template"]["spec"]["containers"])
    )
    for number in re.findall(r'"values": \["(\d+)"\]', found):
        # Kubernetes compares integers, in MiB: an H100 has 81559, an A100 81920, and an H200 143771.
        assert int(number) == {"single-h200": 140000}.get(overlay.name, 80000)


def test_no_autoscaler_of_nodes_removes_a_pod_of_ray(things):
    found = [template for owner, template in pods(things) if owner.startswith("Ray")]
    assert len(found) == 4
    for template in found:
        assert template["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        environment = {variable["name"]: variable["value"] for variable in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE"] == "1"
        assert (template["spec"]["serviceAccountName"] == "theodolite-head") == is_head(template)


def test_budgets_of_ray_are_ones_that_kubernetes_can_compute(things):
    budgets = {thing["metadata"]["name"]: thing["spec"] for thing in of_kind(things, "PodDisruptionBudget")}
    assert budgets.keys() == {"api", "dask-scheduler", "dask-worker", "ray-head", "survey-head"}
    for name, budget in budgets.items():  # RayCluster has no scale, from which a share would be computed
        assert ("minAvailable" if name.endswith("-head") else "maxUnavailable") in budget


def test_no_pod_reaches_the_metadata_service_of_a_cloud(things):
    policies = {thing["metadata"]["name"]: thing["spec"] for thing in of_kind(things, "NetworkPolicy")}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in policies.values():
        for rule in policy.get("egress", []):
            if {one["port"] for one in rule.get("ports", [])} == {53}:  # DNS; the metadata service has other ports
                continue
            for peer in rule["to"]:
                if block := peer.get("ipBlock"):
                    open_to = ip_network(block["cidr"])
                    closed = [ip_network(one) for one in block.get("except", [])]
                    for address in METADATA:
                        inside = address.version == open_to.version and address in open_to
                        assert not inside or any(
                            address in network for network in closed if network.version == address.version
                        )


def test_the_operator_reaches_ray_however_it_was_installed(things):
    (policy,) = [thing for thing in of_kind(things, "NetworkPolicy") if thing["metadata"]["name"] == "ray"]
    labels = [
        peer.get("podSelector", {}).get("matchLabels", {})
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
    ]
    for installed in (  # by Helm, and by kustomize
        {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/component": "kuberay-operator"},
        {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/component": "kuberay-operator"},
    ):
        assert any(wanted and wanted.items() <= installed.items() for wanted in labels)
