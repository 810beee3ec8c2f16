"""What the deployment files say is true of the gateway they deploy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from engine.operator_messages import EngineStats
from gateway.cli import app
from gateway.config import SETTINGS
from gateway.metrics import Metrics, MetricsOptions
from tests import boards
from tests.gateway.relayed import fleet, upstream
from tests.promql import parsed, selectors

ROOT = Path(__file__).parent.parent
GRAFANA = ROOT / "deploy/grafana"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
GATEWAY: dict[str, Any] = COMPOSE["services"]["gateway"]


def flag_value(flag: str) -> str:
    """Return what the compose file gives for a flag."""
    command = GATEWAY["command"]
    return str(command[command.index(flag) + 1])


def test_every_flag_exists() -> None:
    """`keepwarm serve --help` shows each flag that compose file and Dockerfile use."""
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"})
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert command is not None
    flags = [word for word in [*GATEWAY["command"], *json.loads(command[1])] if word.startswith("--")]
    assert len(flags) >= 5
    assert not [flag for flag in flags if not re.search(rf"{flag}\b", shown.output)]


def test_every_value_is_accepted() -> None:
    """Each value in the compose file parses as its setting does."""
    for row in SETTINGS.values():
        if row.flag in GATEWAY["command"]:
            row.parse(flag_value(row.flag))


def test_every_variable_is_a_setting() -> None:
    """Each KEEPWARM_ variable that is set for the gateway is one that it reads."""
    known = {row.env for row in SETTINGS.values()} | {"KEEPWARM_SECRET"}
    used = {*GATEWAY["environment"], *re.findall(r"KEEPWARM_\w+(?==)", DOCKERFILE)}
    assert {name for name in used if name.startswith("KEEPWARM_")} <= known


def test_prometheus_reaches_the_admin_port_with_its_key() -> None:
    """Host, port and path of the scrape are the gateway's, and its token file is the admin key's secret."""
    (job,) = PROMETHEUS["scrape_configs"]
    admin_port = SETTINGS["admin_port"].default
    assert job["static_configs"] == [{"targets": [f"gateway:{admin_port}", f"gateway-2:{admin_port}"]}]
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "/run/secrets/admin_key"}
    assert COMPOSE["services"]["prometheus"]["secrets"] == ["admin_key"]
    assert COMPOSE["secrets"]["admin_key"] == {"environment": "KEEPWARM_ADMIN_KEY"}
    assert "KEEPWARM_ADMIN_KEY" in GATEWAY["environment"]
    assert flag_value("--admin-host") == "0.0.0.0"


def test_nothing_is_published_beyond_loopback() -> None:
    """Every published port is bound to 127.0.0.1, and the admin port is not published."""
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert not [port for port in published if SETTINGS["admin_port"].default in port]
    assert f"127.0.0.1:{SETTINGS['port'].default}:{SETTINGS['port'].default}" in GATEWAY["ports"]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_is_pinned_and_watched(name: str) -> None:
    """Images have an exact tag, and each service has a health check, in the file or in our image."""
    service = COMPOSE["services"][name]
    assert re.search(r":v?\d+\.\d+\.\d+", service["image"])
    assert "healthcheck" in service or ("build" in service and "\nHEALTHCHECK " in DOCKERFILE)


def test_every_volume_is_declared_and_every_file_exists() -> None:
    """Named volumes are declared once and used; what is mounted of the repository is there."""
    mounts = [mount.split(":")[0] for service in COMPOSE["services"].values() for mount in service.get("volumes", [])]
    assert {mount for mount in mounts if not mount.startswith(".")} == set(COMPOSE["volumes"])
    assert all((ROOT / mount).exists() for mount in mounts if mount.startswith("."))


def test_our_folders_are_where_the_volumes_are() -> None:
    """Cache and state of the gateway lie on its volumes."""
    targets = {mount.split(":")[1] for mount in GATEWAY["volumes"] if not mount.startswith(".")}
    cache, state = re.search(r"KEEPWARM_CACHE=(\S+)", DOCKERFILE), re.search(r"XDG_STATE_HOME=(\S+)", DOCKERFILE)
    assert cache is not None
    assert state is not None
    assert targets == {cache[1], f"{state[1]}/keepwarm"}


def test_every_query_asks_for_metrics_that_exist() -> None:
    """Each metric that a board, a rule or vLLM's board asks for is on the gateway's own metrics page."""
    upstreams = fleet(upstream("one"), upstream("two"))
    page = Metrics("model", MetricsOptions(tenants=("a",)), fleet=upstreams).exposition(EngineStats(), 0).decode()
    emitted = set(re.findall(r"^([a-z][\w:]+)", page, re.MULTILINE))
    # a counter with labels of its own has no line before its first event
    emitted |= {f"{name}_total" for name in re.findall(r"^# TYPE (\w+?)(?:_total)? counter$", page, re.MULTILINE)}
    queries = [query for queries in (*boards.shipped().values(), boards.VLLM) for query in queries]
    asked = {selector.name for query in queries for selector in selectors(parsed(query))}
    assert len(queries) > 100
    assert len(asked) > 50
    assert asked - emitted == {"up"}  # which is Prometheus' own


@pytest.mark.parametrize("name", boards.BOARDS)
def test_every_board_uses_the_provisioned_source(name: str) -> None:
    """Panels and variables name the data source that Grafana is given, and say what they show; ids are unique."""
    board = boards.BOARDS[name]
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    used = [*panels, *(target for panel in panels for target in panel["targets"]), *board["templating"]["list"]]
    assert {one["datasource"]["uid"] for one in used} == {source["uid"]}
    assert all(panel["description"] for panel in panels)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert board["uid"] == name.removesuffix(".json")


def test_boards_and_rules_are_where_they_are_looked_for() -> None:
    """The folders that Grafana and Prometheus read are mounted, and the home board is one of ours."""
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/keepwarm.yml").read_text())["providers"]
    path = provider["options"]["path"]
    grafana, prometheus = (COMPOSE["services"][name] for name in ("grafana", "prometheus"))
    assert f"./deploy/grafana/dashboards:{path}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in {f"{path}/{name}" for name in boards.BOARDS}
    assert "./deploy/prometheus:/etc/prometheus:ro" in prometheus["volumes"]
    assert PROMETHEUS["rule_files"] == ["/etc/prometheus/rules/*.yml"]
    assert set(boards.RULES) == {"keepwarm.yml"}


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    """Each rule has a severity that is known, a title and a description, and stands in the operators' table."""
    table = (ROOT / "docs/operators.md").read_text()
    rules = [rule for group in boards.RULES["keepwarm.yml"]["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == 8
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warn", "page"}
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in table


def test_no_board_holds_a_metric_under_an_old_name() -> None:
    """Nothing that is shipped asks for a name that was given up."""
    old = re.compile(r"keepwarm_(exchanges|prompt_tokens|missed_tokens|inter_token_seconds)")
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()] + [ROOT / "docs/operators.md"]
    assert [path.name for path in files if old.search(path.read_text())] == []
