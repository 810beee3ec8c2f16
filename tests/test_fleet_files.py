"""The deployment files of a fleet: valid by their schemas, and true of the gateway that they deploy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.auth import OPEN_PATHS
from gateway.config import SETTINGS
from gateway.config_file import read_file
from gateway.listeners import LAST_WORDS_S
from gateway.relay.upstream import PATHS
from prefix_store.retention import parse_duration

ROOT = Path(__file__).parent.parent
SCHEMAS = Path(__file__).parent / "schemas"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GATEWAYS = [name for name in SERVICES if name.startswith("gateway")]
REPLICAS = [name for name in SERVICES if name.startswith("replica")]
OBJECTS: list[dict[str, Any]] = [
    document
    for path in sorted((ROOT / "deploy/kubernetes").rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
KINDS = {  # what a cluster has of itself, and where its schema is; ServiceMonitor is an operator's
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "HorizontalPodAutoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "Service": "io.k8s.api.core.v1.Service",
}


def schema(name: str) -> dict[str, Any]:
    """Read one schema."""
    read: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    return read


def problems(document: dict[str, Any], by: dict[str, Any]) -> list[str]:
    """Return what a document's schema has against it."""
    return [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(by).iter_errors(document)
    ]


def kubernetes(kind: str) -> dict[str, Any]:
    """Return the schema of a kind."""
    return schema("kubernetes-1.37.json") | {"$ref": f"#/$defs/{KINDS[kind]}"}


def the(kind: str, name: str = "keepwarm") -> dict[str, Any]:
    """Return one of the Kubernetes objects."""
    (found,) = (one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def container() -> dict[str, Any]:
    """Return the one container of a gateway's pod."""
    (found,) = the("Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def flags(words: list[str]) -> dict[str, str]:
    """Return the flags of a command line with their values, "" where there is none."""
    joined = " ".join(words).replace("=", " ").split()
    return {
        word: after if not after.startswith("--") else ""
        for word, after in zip(joined, [*joined[1:], "--"], strict=True)
        if word.startswith("--")
    }


def test_compose_is_a_compose_file() -> None:
    """The file is one by the Compose Specification's own schema."""
    assert problems(COMPOSE, schema("compose-spec.json")) == []


@pytest.mark.parametrize("document", [one for one in OBJECTS if one["kind"] in KINDS], ids=lambda one: one["kind"])
def test_manifests_are_what_kubernetes_reads(document: dict[str, Any]) -> None:
    """Each object is one by Kubernetes' own schema, which knows no other fields, and stands under its API's version."""
    assert problems(document, kubernetes(document["kind"])) == []


def test_the_schemas_refuse() -> None:
    """A misspelt field is found in both, so the tests above can fail."""
    compose, deployment = copy.deepcopy(COMPOSE), copy.deepcopy(the("Deployment"))
    compose["services"]["redis"]["comand"] = []
    deployment["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert len(problems(compose, schema("compose-spec.json"))) == 1
    assert len(problems(deployment, kubernetes("Deployment"))) == 1


def test_every_kind_is_checked() -> None:
    """Whatever lies in the folder is of a kind whose schema is here, but for the operator's own."""
    assert {one["kind"] for one in OBJECTS} == {*KINDS, "ServiceMonitor"}


# ---- compose ----


def test_two_gateways_share_one_redis() -> None:
    """Both are started alike, with the Redis, the file and the secret that they must have in common."""
    assert GATEWAYS == ["gateway", "gateway-2"]
    one, two = (SERVICES[name] for name in GATEWAYS)
    assert one["command"] == two["command"]
    assert one["environment"] == two["environment"]
    assert flags(one["command"])["--redis"].startswith("redis://redis:")
    assert "KEEPWARM_SECRET" in one["environment"]
    assert {mount.split(":")[0] for mount in one["volumes"]} & {mount.split(":")[0] for mount in two["volumes"]} == {
        "./deploy/keepwarm.toml"
    }


def test_replicas_are_started_on_demand() -> None:
    """Exactly the replicas stand under the profile, and none is published."""
    assert [name for name, service in SERVICES.items() if service.get("profiles") == ["replicas"]] == REPLICAS
    assert [name for name, service in SERVICES.items() if "profiles" in service] == REPLICAS
    assert not any("ports" in SERVICES[name] for name in REPLICAS)


def test_the_gateways_know_the_replicas() -> None:
    """The mounted file can be used, and names each replica where it listens, its model and all of its addresses."""
    file = read_file(ROOT / "deploy/keepwarm.toml")
    upstreams = {one.name: one for one in file.upstreams}
    assert list(upstreams) == REPLICAS
    for name, one in upstreams.items():
        assert one.base_url == f"http://{name}:{SETTINGS['port'].default}/v1"
        assert one.models == (file.server["model"],) == (flags(SERVICES[name]["command"])["--model"],)
        assert set(one.endpoints) == set(PATHS)
    assert set(file.routing) == {file.server["model"]}
    mounted = "./deploy/keepwarm.toml:" + flags(SERVICES["gateway"]["command"])["--config"] + ":ro"
    assert mounted in SERVICES["gateway"]["volumes"]


@pytest.mark.parametrize("name", GATEWAYS)
def test_compose_waits_for_streams(name: str) -> None:
    """A gateway is killed only after its time to drain and its last words."""
    drain_s = parse_duration(flags(SERVICES[name]["command"])["--drain"])
    assert parse_duration(SERVICES[name]["stop_grace_period"]) > drain_s + LAST_WORDS_S


# ---- Kubernetes ----


def test_the_configured_file_can_be_used(tmp_path: Path) -> None:
    """The ConfigMap's file is one that a gateway takes, and lies where the gateway is told to look."""
    (name, text), *others = the("ConfigMap")["data"].items()
    (tmp_path / name).write_text(text)
    assert not others
    assert len(read_file(tmp_path / name).upstreams) == 2
    given = flags(container()["args"])
    (mount,) = (one for one in container()["volumeMounts"] if one["name"] == "config")
    assert given["--config"] == f"{mount['mountPath']}/{name}"


def test_arguments_are_settings() -> None:
    """Each flag of the container is one of `keepwarm serve`, and its value parses."""
    given = flags(container()["args"])
    by_flag = {row.flag: row for row in SETTINGS.values() if row.flag}
    assert given.pop("--no-engine") == ""
    assert set(given) <= set(by_flag)
    for flag, text in given.items():
        by_flag[flag].parse(text)


def test_secrets_are_references() -> None:
    """Every variable that is secret comes from the one Secret, which no file holds, and is one that is read."""
    known = {row.env for row in SETTINGS.values()} | {"KEEPWARM_SECRET"}
    variables = {one["name"]: one["valueFrom"]["secretKeyRef"]["name"] for one in container()["env"]}
    assert variables == dict.fromkeys(("KEEPWARM_ADMIN_KEY", "KEEPWARM_SECRET", "KEEPWARM_REDIS"), "keepwarm")
    assert set(variables) <= known
    assert "Secret" not in {one["kind"] for one in OBJECTS}


def test_probes_ask_what_needs_no_key() -> None:
    """Readiness asks /ready, the others /health, on the port that clients use."""
    ports = {one["name"]: str(one["containerPort"]) for one in container()["ports"]}
    paths = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: get["path"] for name, get in paths.items()} == {
        "startup": "/health",
        "readiness": "/ready",
        "liveness": "/health",
    }
    assert {get["path"] for get in paths.values()} <= OPEN_PATHS
    assert {get["port"] for get in paths.values()} == {"http"}
    assert ports == {"http": SETTINGS["port"].default, "admin": SETTINGS["admin_port"].default}


def test_kubernetes_waits_for_streams() -> None:
    """A pod is killed only after it has left the Service, drained and said its last words."""
    leaving_s = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = parse_duration(flags(container()["args"])["--drain"])
    assert the("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > (
        leaving_s + drain_s + LAST_WORDS_S
    )


def test_everything_selects_the_gateways() -> None:
    """Services, budget, autoscaler and monitor find the Deployment's pods, and the ports that they name."""
    template = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert the("Deployment")["spec"]["selector"]["matchLabels"] == template
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == template
    ports = {one["name"] for one in container()["ports"]}
    for service in (the("Service"), the("Service", "keepwarm-admin")):
        assert service["spec"]["selector"] == template
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    target = the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "keepwarm"}
    monitor = the("ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == the("Service", "keepwarm-admin")["metadata"]["labels"]
    assert [one["port"] for one in monitor["endpoints"]] == ["admin"]
