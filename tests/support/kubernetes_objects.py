"""Find objects among those of a Kubernetes overlay, and what they contain."""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
from support.rendering import Thing

KUBERNETES = "1.34"


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
    """Return the environment of the service."""
    (container,) = one(things, "Deployment", "api")["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def is_head(template: Thing) -> bool:
    """Return whether a pod template is that of Ray's head."""
    return bool(template["spec"]["containers"][0]["name"] == "ray-head")


def kinds(things: list[Thing]) -> set[str]:
    """Return the kinds of the objects."""
    return {thing["kind"] for thing in things}


def of_kind(things: list[Thing], kind: str) -> Iterator[Thing]:
    """Return the objects of a kind."""
    return (thing for thing in things if thing["kind"] == kind)


def one(things: list[Thing], kind: str, name: str | None = None) -> Thing:
    """Return the only object of a kind, or the one with a name."""
    (found,) = [thing for thing in of_kind(things, kind) if name in (None, thing["metadata"]["name"])]
    return found


def config(things: list[Thing], name: str) -> dict[str, str]:
    """Return the data of a ConfigMap, whose name may have a hash."""
    (found,) = [
        thing
        for thing in of_kind(things, "ConfigMap")
        if re.fullmatch(f"{name}(-[a-z0-9]{{10}})?", thing["metadata"]["name"])
    ]
    return dict(found["data"])


def components_of(selector: Thing) -> set[str]:
    """Return the values that a label selector admits."""
    expressions = selector.get("matchExpressions", [])
    chosen = {value for rule in expressions for value in rule["values"]}
    return chosen | set(selector.get("matchLabels", {}).values())


def merged(schema: Any, patch: Any) -> Any:
    """Return a schema with a JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(schema, dict):
        return patch
    return schema | {key: merged(schema.get(key), value) for key, value in patch.items()}


def check_core(thing: Thing) -> None:
    """Hold an object against Kubernetes' own schema, which allows no unknown field."""
    try:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:  # whose text is the whole schema
        raise AssertionError(f"{thing['kind']} {thing['metadata']['name']}: {error.message}") from None


def confined(context: Any) -> None:
    """Check that a security context allows a container no more than it needs."""
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
