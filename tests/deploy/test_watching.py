"""What watches a deployment: Prometheus' configuration, its rules and their runbooks, Grafana's dashboards."""

import importlib.util
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from support.deploy_commands import promtool
from support.grafana_schema import mistakes

from theodolite.metrics import REGISTRY

ROOT = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = ROOT / "deploy/prometheus", ROOT / "deploy/grafana"
OPERATIONS = (ROOT / "docs/operations.md").read_text()

RULES = yaml.safe_load((PROMETHEUS / "rules/theodolite.yml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
WATCHDOG = "TheodoliteWatchdog"
CASES = sorted((PROMETHEUS / "tests").glob("*.test.yml"))

DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
PANELS = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"] if panel["type"] != "row"]
QUERIES = [rule["expr"] for rule in ALERTS.values()]
QUERIES += [target["expr"] for panel in PANELS for target in panel["targets"]]
NAMES = {
    name
    for text in [*QUERIES, *(json.dumps(dashboard["templating"]) for dashboard in DASHBOARDS.values())]
    for name in re.findall(r"\b(?:theodolite|ray|dask)_[a-z0-9_]+", text)
}

METRICS = {(metric.name, metric.type) for metric in REGISTRY.collect()}
SERIES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def source_of(package: str, *path: str) -> str:
    """The text of an installed package's file, without importing the package."""
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    return Path(folder, *path).read_text()


def test_prometheus_takes_its_configuration(tmp_path):
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "token").write_text("secret")
    config = (PROMETHEUS / "prometheus.yml").read_text().replace("/run/secrets/metrics_token", f"{tmp_path}/token")
    (tmp_path / "prometheus.yml").write_text(config)
    promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.nightly
def test_alerts_fire_and_stay_quiet_when_they_should():
    promtool("test", "rules", *CASES)


def test_each_alert_has_a_case_that_fires_and_one_that_stays_quiet():
    asked = [
        (question["alertname"], bool(question["exp_alerts"]))
        for file in CASES
        for case in yaml.safe_load(file.read_text())["tests"]
        for question in case.get("alert_rule_test", ())
    ]
    both = {(name, fires) for name in ALERTS for fires in (True, False)}
    assert set(asked) == both - {(WATCHDOG, False)}, "the watchdog is never quiet"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    sections = re.findall(r"^### (Theodolite\w+)$", OPERATIONS, re.MULTILINE)
    assert sections == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in (("none",) if name == WATCHDOG else ("critical", "warning"))
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.docs }}}}/operations.html#{name.lower()}"


def test_runbooks_are_linked_where_the_site_has_them():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in site["plugins"], "without it, the page is operations/ and not operations.html"
    in_pods = (ROOT / "deploy/kubernetes/base/prometheus-config.yaml").read_text()
    for config in (in_pods, (PROMETHEUS / "prometheus.yml").read_text()):
        assert re.fullmatch(r"https://\S+[^/]", yaml.safe_load(config)["global"]["external_labels"]["docs"])


def test_no_alert_fires_while_a_survey_may_wait_for_nodes():
    overlays = (ROOT / "deploy/kubernetes/overlays").glob("*/kustomization.yaml")
    waits = [wait for file in overlays for wait in re.findall(r"NODES_WAIT_SECONDS\D+(\d+)", file.read_text())]
    assert ALERTS["TheodoliteNoReplica"]["for"] == "1h"
    assert 0 < max(map(int, waits)) < 3600


def test_the_alertmanager_example_is_taken():
    text = (PROMETHEUS / "alertmanager.yml").read_text()
    if shutil.which("amtool"):
        subprocess.run(["amtool", "check-config", PROMETHEUS / "alertmanager.yml"], check=True, capture_output=True)
    example = yaml.safe_load(text)
    assert set(example) == {"route", "inhibit_rules", "receivers"}
    routes = {matcher: route["receiver"] for route in example["route"]["routes"] for matcher in route["matchers"]}
    severities = {rule["labels"]["severity"] for rule in ALERTS.values()} - {"none"}
    assert set(routes) == {f"alertname = {WATCHDOG}"} | {f"severity = {severity}" for severity in severities}
    assert {example["route"]["receiver"], *routes.values()} == {one["name"] for one in example["receivers"]}
    for rule in example["inhibit_rules"]:
        assert set(rule) <= {"source_matchers", "target_matchers", "equal"}
    assert set(re.findall(r"Theodolite[A-Z]\w+", text)) <= set(ALERTS)


def test_prometheus_takes_the_address_of_an_alertmanager(tmp_path):
    text = (PROMETHEUS / "prometheus.yml").read_text()
    block = "\n".join(re.findall(r"^# (alerting:|  .*)$", text, re.MULTILINE))
    config = yaml.safe_load(block)
    assert config["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    (tmp_path / "prometheus.yml").write_text(block)
    promtool("check", "config", tmp_path / "prometheus.yml")


def test_our_metrics_exist_and_are_all_explained():
    series = {name + ending for name, kind in METRICS for ending in SERIES[kind]}
    assert {name for name in NAMES if name.startswith("theodolite_")} <= series
    explained = re.findall(r"^\| `(theodolite_\w+)", OPERATIONS, re.MULTILINE)
    assert sorted(explained) == sorted(name + "_total" * (kind == "counter") for name, kind in METRICS)


def test_metrics_of_ray_and_dask_exist_in_what_is_installed():
    ray = source_of("ray", "dashboard", "modules", "reporter", "reporter_agent.py")
    dask = source_of("distributed", "http", "scheduler", "prometheus", "core.py")
    exist = {f"ray_{name}" for name in re.findall(r'Gauge\(\s*"(\w+)"', ray)}
    exist |= {f"dask_scheduler_{name}" for name in re.findall(r'GaugeMetricFamily\(\s*self.build_name\("(\w+)"', dask)}
    of_head = {name for name in NAMES if name.startswith("ray_gcs_")}
    assert of_head
    gcs_server = Path(importlib.util.find_spec("ray").submodule_search_locations[0], "core/src/ray/gcs/gcs_server")
    binary = gcs_server.read_bytes()
    exist |= {name for name in of_head if f"\0{name.removeprefix('ray_')}\0".encode() in binary}
    assert {name for name in NAMES if not name.startswith("theodolite_")} <= exist


def test_queries_can_be_read_by_prometheus(tmp_path):
    variables = {"$__rate_interval": "1m", "$__range": "1h", "$model": ".*", "$route": ".*"}
    rules = []
    for query in QUERIES:
        for variable, value in variables.items():
            query = query.replace(variable, value)
        assert "$" not in query, "a variable that nobody defines"
        rules.append({"record": f"query:{len(rules)}", "expr": query})
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "queries.yml")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_all_that_a_dashboard_says(name):
    assert list(mistakes(DASHBOARDS[name])) == []


def test_what_grafana_does_not_know_is_found():
    panel = {
        "type": "stat",
        "titel": "?",
        "gridPos": {"w": "4"},
        "options": {"colorMode": "rainbow"},
        "fieldConfig": {"defaults": {"unit": "parsecs"}},
    }
    found = " ".join(mistakes({"panels": [panel, {"type": "graf"}]}))
    assert all(word in found for word in ("titel", "'4'", "rainbow", "parsecs", "graf"))


def test_panels_say_what_they_show():
    for panel in PANELS:
        assert panel["title"]
        assert re.fullmatch(r"\S.+\.", panel["description"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_dashboards_choose_with_the_variables_that_they_offer():
    for dashboard in DASHBOARDS.values():
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard["panels"])))
        assert used == {variable["name"] for variable in dashboard["templating"]["list"]}


def test_panels_do_not_clash():
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) == 3
    for dashboard in DASHBOARDS.values():
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for panel, other in combinations(panels, 2):
            a, b = panel["gridPos"], other["gridPos"]
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (panel["title"], other["title"])


def test_dashboards_ask_the_chosen_source_and_by_default_the_provisioned_one():
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    (source,) = provisioned["datasources"]
    for dashboard in DASHBOARDS.values():
        choice, *variables = dashboard["templating"]["list"]  # the other variables ask the source that is chosen
        assert (choice["name"], choice["type"], choice["query"]) == ("datasource", "datasource", source["type"])
        assert choice["current"] == {"text": source["name"], "value": source["uid"]}
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        assert all(one["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for one in panels + variables)


def test_each_step_of_a_shard_has_a_panel():
    shown = json.dumps(DASHBOARDS["capture"]["panels"])
    for name in ("capture_seconds", "encode_seconds", "store_write_seconds", "commit_seconds", "replica_idle_seconds"):
        assert f"theodolite_{name}_" in shown, name
