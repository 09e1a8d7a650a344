"""What people configure in the manifests: settings, alerts, images, models, names; and what a change replaces."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.deploy_commands import assert_fetches_what_surveys_read, promtool
from support.each import each
from support.kubernetes_objects import (
    config,
    environment_of_api,
    of_kind,
    one,
    pods,
)
from support.rendering import render, render_survey

from theodolite.api.access import LOOPBACK
from theodolite.api.problems import Problem
from theodolite.api.spec_policy import check_submission
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
REGISTRY = "registry.example.org/survey"


def test_a_new_setting_replaces_the_pods_that_read_it_and_a_new_survey_none(overlay, things, tmp_path):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    base = tmp_path / "deploy/kubernetes/base/kustomization.yaml"
    base.write_text(base.read_text().replace("LINGER_SECONDS=20", "LINGER_SECONDS=30"))
    changed = render_survey(tmp_path / "deploy/kubernetes/overlays" / overlay.name)
    for kind, name in (("RayCluster", None), ("RayJob", None), ("Deployment", "api"), ("Deployment", "dask-worker")):
        assert one(changed, kind, name) != one(things, kind, name), kind
    assert one(changed, "Deployment", "prometheus") == one(things, "Deployment", "prometheus")
    survey = tmp_path / "deploy/kubernetes/overlays" / overlay.name / "survey.yaml"
    if survey.exists():
        survey.write_text(survey.read_text() + "name: another\n")
        again = render_survey(survey.parent)
        assert one(again, "RayCluster") == one(changed, "RayCluster")
        assert config(again, "survey") != config(changed, "survey")


@each("file", ["prometheus/rules/theodolite.yml", "kubernetes/base/prometheus-config.yaml"])
def test_a_new_alert_or_target_replaces_the_pod_of_prometheus(overlay, things, tmp_path, file):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    with (tmp_path / "deploy" / file).open("a") as content:
        content.write("# another\n")
    changed = render_survey(tmp_path / "deploy/kubernetes/overlays" / overlay.name)
    assert one(changed, "Deployment", "prometheus") != one(things, "Deployment", "prometheus")
    assert one(changed, "Deployment", "api") == one(things, "Deployment", "api")


def test_the_example_names_the_images_that_make_pushes():
    things = render(ROOT / "deploy/kubernetes/overlays/example")
    used = {container["image"] for _, template in pods(things) for container in template["spec"]["containers"]}
    make = ["make", "--silent", "push", "ENGINE=echo", f"REGISTRY={REGISTRY}"]
    printed = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pushed = {line.split()[1] for line in printed.splitlines() if line.startswith("push ")}
    assert len(pushed) == 3
    assert used == pushed | {COMPOSE["prometheus"]["image"]}


def test_a_copy_of_the_example_can_have_another_survey(tmp_path):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlays = tmp_path / "deploy/kubernetes/overlays"
    overlay = shutil.copytree(overlays / "example", overlays / "mine")
    (line,) = re.findall(r"`(- \{name: survey, .*\})`", (ROOT / "docs/kubernetes.md").read_text())
    file = overlay / "kustomization.yaml"
    file.write_text(file.read_text().replace("configMapGenerator:\n", f"configMapGenerator:\n  {line}\n"))
    (overlay / "survey.yaml").write_text("name: another\n")
    things = render(tmp_path / "deploy/kubernetes/survey")  # which names the overlay `mine`
    surveys = [thing for thing in of_kind(things, "ConfigMap") if thing["metadata"]["name"] == "survey"]
    assert [survey["data"] for survey in surveys] == [{"survey.yaml": "name: another\n"}]
    assert one(things, "RayJob")


def test_the_example_changes_what_the_page_says():
    things = render(ROOT / "deploy/kubernetes/overlays/example")
    classes = {claim["metadata"]["name"]: claim["spec"] for claim in of_kind(things, "PersistentVolumeClaim")}
    shared = {name for name, claim in classes.items() if "ReadWriteMany" in claim["accessModes"]}
    assert shared == {name for name, claim in classes.items() if "storageClassName" in claim}
    accounts = [thing for thing in of_kind(things, "ServiceAccount") if thing["metadata"]["name"] != "prometheus"]
    assert len(accounts) == 2
    assert all("eks.amazonaws.com/role-arn" in account["metadata"]["annotations"] for account in accounts)
    assert one(things, "Ingress")["spec"]["ingressClassName"] == "nginx"


def test_models_are_fetched_as_surveys_look_for_them(things):
    for job in of_kind(things, "Job"):
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert_fetches_what_surveys_read(command)
        model = config(things, "model")
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
    content = config(things, "prometheus")["prometheus.yml"]
    here, elsewhere = yaml.safe_load(content), yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    names = [[job["job_name"] for job in config["scrape_configs"]] for config in (here, elsewhere)]
    assert names[0] == names[1]
    (rules,) = config(things, "prometheus-rules").values()
    assert yaml.safe_load(rules) == yaml.safe_load((ROOT / "deploy/prometheus/rules/theodolite.yml").read_text())
    settings = config(things, "settings")
    (found,) = here["scrape_configs"][1]["file_sd_configs"]
    assert found["files"] == [f"{settings['THEODOLITE_METRICS_TARGETS']}/*.json"]
    for job in here["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None):  # Debian's promtool is built without them
            job["static_configs"] = [{"targets": ["10.0.0.1:8000"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(here))
    promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")


def test_the_head_of_a_batch_survey_does_not_pass_for_the_long_lived_one(things):
    scraped = yaml.safe_load(config(things, "prometheus")["prometheus.yml"])["scrape_configs"]
    (of_ray,) = [job for job in scraped if job["job_name"] == "ray"]
    label = {"source_labels": ["__meta_kubernetes_pod_label_ray_io_cluster"], "target_label": "raycluster"}
    assert label in of_ray["relabel_configs"]
    rules = yaml.safe_load(config(things, "prometheus-rules")["theodolite.yml"])["groups"]
    (expression,) = [
        rule["expr"] for group in rules for rule in group["rules"] if rule["alert"] == "TheodoliteHeadDown"
    ]
    assert f'raycluster=~"|{one(things, "RayCluster")["metadata"]["name"]}"' in expression


def test_a_survey_over_http_may_name_the_model_that_the_nodes_have(things):
    allowed = json.loads(config(things, "settings")["THEODOLITE_MODELS_ALLOWED"])
    spec = parse_spec(yaml.safe_load(config(things, "survey")["survey.yaml"]))
    check_submission(spec, Settings(models_allowed=allowed))
    with pytest.raises(Problem):
        check_submission(spec, Settings(models_allowed=[]))


def test_settings_are_ones_that_theodolite_knows(things):
    names = {
        name.removeprefix("THEODOLITE_").lower()
        for name in config(things, "settings")
        if name.startswith("THEODOLITE_")
    }
    assert names <= Settings.model_fields.keys()
