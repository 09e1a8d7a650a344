"""As much of kustomize as the overlays use, for machines that lack it; a test compares it with the real one."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import yaml

Thing = dict[str, Any]


def render(folder: Path) -> list[Thing]:
    """Return the objects that a kustomization gives."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = told.keys() - {"namespace", "resources", "patches", "replacements", "configMapGenerator"}
    unknown -= {"generatorOptions"} if told.get("generatorOptions") == {"disableNameSuffixHash": True} else set()
    assert not unknown, f"{folder}: tests/support/rendering.py does not implement {sorted(unknown)}"
    things: list[Thing] = []
    for name in told.get("resources", []):
        place = folder / name
        # Through JSON, so that what YAML's anchors share is shared no more.
        things += (
            render(place) if place.is_dir() else json.loads(json.dumps(list(yaml.safe_load_all(place.read_text()))))
        )
    for told_map in told.get("configMapGenerator", []):
        data = {Path(file).name: (folder / file).read_text() for file in told_map["files"]}
        things.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": told_map["name"]}, "data": data})
    for patch in told.get("patches", []):
        things = _patched(things, patch)
    for thing in things:
        if "namespace" in told and thing["kind"] != "Namespace":
            thing["metadata"]["namespace"] = told["namespace"]
    for replacement in told.get("replacements", []):
        source = replacement["source"]
        (value,) = [_get(thing, source["fieldPath"].split(".")) for thing in things if thing["kind"] == source["kind"]]
        for target in replacement["targets"]:
            for thing in things:
                if thing["kind"] == target["select"]["kind"]:
                    for path in target["fieldPaths"]:
                        *parents, last = path.split(".")
                        _get(thing, parents)[last] = copy.deepcopy(value)
    return things


def _patched(things: list[Thing], patch: Thing) -> list[Thing]:
    content = yaml.safe_load(patch["patch"])
    target = patch.get("target") or {"kind": content["kind"], "name": content["metadata"]["name"]}
    found = [thing for thing in things if _is(thing, target)]
    assert found, f"no object is {target}"
    if isinstance(content, dict):
        assert content["$patch"] == "delete", "merging is not needed so far"
        return [thing for thing in things if thing not in found]
    for thing in found:
        for step in content:
            *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"][1:].split("/")]
            holder = _get(thing, parents)
            key = int(last) if isinstance(holder, list) else last
            assert step["op"] == "add" or key in (range(len(holder)) if isinstance(holder, list) else holder), step
            holder[key] = copy.deepcopy(step["value"])
    return things


def _is(thing: Thing, target: Thing) -> bool:
    names = {"kind": thing["kind"], "name": thing["metadata"]["name"]}
    return all(re.fullmatch(pattern, names[key]) for key, pattern in target.items())


def _get(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value[int(part) if isinstance(value, list) else part]
    return value
