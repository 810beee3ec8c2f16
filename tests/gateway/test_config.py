"""Settings: where they come from and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config import SETTINGS, Settings, cache_dir, is_loopback, origins, read_settings, state_dir
from gateway.config_values import parse_size
from gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("2GB", 2_000_000_000), ("1.5kib", 1536), ("77", 77), ("10b", 10)],
)
def test_sizes(text: str, size: int) -> None:
    """Binary and decimal units mean what they say."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "4XiB", "4 GiB please"])
def test_sizes_refused(text: str) -> None:
    """What is no size above zero is refused with an example."""
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_flag_beats_environment_beats_default() -> None:
    """The nearer a value is to the command, the more it counts."""
    environ = {"KEEPWARM_PORT": "9000", "KEEPWARM_TTL": "1h"}
    settings = read_settings({"port": "9001", "ttl": None}, environ)
    assert (settings.port, settings.ttl, settings.model) == (9001, 3600.0, "smollm2-135m")


def test_the_file_counts_before_defaults_only() -> None:
    """What a configuration file says gives way to environment and flags."""
    file = {"port": "9000", "host": "::1", "model": "file"}
    settings = read_settings({"port": "9002"}, {"KEEPWARM_HOST": "localhost"}, file)
    assert (settings.port, settings.host, settings.model, settings.max_num_seqs) == (9002, "localhost", "file", 16)
    told = origins({"port": "9002"}, {"KEEPWARM_HOST": "localhost"}, file)
    sources = [told[name].source for name in ("port", "host", "model", "max_num_seqs", "redis")]
    assert sources == ["--port", "KEEPWARM_HOST", "[server] model", "default", "default"]


@pytest.mark.parametrize(
    "url", ["redis://host", "rediss://user:word@host:6380/1", "unix:///run/redis.sock?db=1", "redis://[::1]:6379"]
)
def test_redis_urls(url: str) -> None:
    """Plain, encrypted and local servers can be named, and stay as written."""
    assert read_settings({"redis": url}, {}).redis == url


@pytest.mark.parametrize(
    "url", ["host:6379", "http://me:hunter2@host", "redis://me:hunter2@[::1", "redis://h?tmeout=1"]
)
def test_redis_urls_refused(url: str) -> None:
    """What leads to no Redis is refused under its name, without repeating a password."""
    with pytest.raises(ConfigError, match="--redis") as refusal:
        read_settings({"redis": url}, {})
    assert "hunter2" not in str(refusal.value)


def test_secrets_do_not_show() -> None:
    """Settings can be printed."""
    settings = read_settings({"redis": "redis://me:hunter2@host"}, {"KEEPWARM_ADMIN_KEY": "hunter2"})
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"port": "x"}, {}, "--port"),
        ({"port": "65536"}, {}, "--port"),
        ({}, {"KEEPWARM_TTL": "soon"}, "KEEPWARM_TTL"),
        ({"kv_bytes": "lots"}, {}, "--kv-bytes"),
        ({"gpu_memory_utilization": "0"}, {}, "--gpu-memory-utilization: expected a share above 0 and at most 1"),
        ({"gpu_memory_utilization": "1.01"}, {}, "--gpu-memory-utilization"),
        ({"gpu_memory_utilization": "nan"}, {}, "--gpu-memory-utilization"),
        ({}, {"KEEPWARM_BLOCK_SIZE": "0"}, "KEEPWARM_BLOCK_SIZE"),
        ({"max_model_len": "0"}, {}, "--max-model-len"),
        ({"kv_cache_dtype": "int4"}, {}, "--kv-cache-dtype: expected one of auto, float32, .*, int8, not 'int4'"),
        ({}, {"KEEPWARM_KV_CACHE_DTYPE": "fp16"}, "KEEPWARM_KV_CACHE_DTYPE"),
        ({"deterministic": "on", "torch_compile": "on"}, {}, "--deterministic and --torch-compile: .* leave one out"),
        (
            {"deterministic": "on", "device": "cuda"},
            {},
            "--deterministic computes on a CPU, not on cuda: leave one of them out",
        ),
        ({"device": "gpu"}, {}, "--device: expected cpu, cuda or a GPU's number such as cuda:1, not 'gpu'"),
        ({"port": "8001"}, {}, "--admin-port"),
        ({"step_tokens": "4"}, {}, "--step-tokens"),
    ],
)
def test_refusal_names_where_the_value_came_from(flags: dict[str, str], environ: dict[str, str], said: str) -> None:
    """A wrong value is refused under the name it was given by."""
    with pytest.raises(ConfigError, match=said):
        read_settings(flags, environ)


def test_admin_port_beyond_loopback_needs_a_key() -> None:
    """The operators' side is not opened to other machines by accident."""
    with pytest.raises(ConfigError, match="KEEPWARM_ADMIN_KEY"):
        Settings(admin_host="0.0.0.0")
    assert Settings(admin_host="0.0.0.0", admin_key="k").admin_key == "k"


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "gateway.example")),
    ],
)
def test_loopback(host: str, alone: bool) -> None:
    """Only addresses that other machines cannot reach count as loopback."""
    assert is_loopback(host) == alone


def test_keys_have_no_flag() -> None:
    """A secret is not put where every process can read it."""
    assert SETTINGS["admin_key"].flag == ""


def test_folders_follow_the_environment() -> None:
    """XDG variables are obeyed where they are absolute, and KEEPWARM_CACHE beats them."""
    environ = {"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "relative"}
    assert cache_dir(Settings(), environ) == Path("/c/keepwarm")
    assert cache_dir(read_settings({}, {"KEEPWARM_CACHE": "/k"}), environ) == Path("/k")
    assert state_dir(environ) == Path.home() / ".local/state/keepwarm"


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("compat_metrics", "auto", "auto"),
        ("compat_metrics", " OFF ", "off"),
        ("metrics_tenants", "", ()),
        ("metrics_tenants", "b, a,b,", ("b", "a")),
        ("otlp_endpoint", "https://collector:4318/v1/traces", "https://collector:4318/v1/traces"),
    ],
)
def test_what_is_shown_is_a_setting(flag, text, value):
    """Names on the metrics page, the tenants it tells apart, and where traces go."""
    assert getattr(read_settings({flag: text}, {}), flag) == value


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("compat_metrics", "yes", "--compat-metrics: expected auto, on or off, not 'yes'"),
        ("metrics_tenants", "a,b c", "--metrics-tenants: 'b c' is not a name"),
        ("otlp_endpoint", "collector:4318", "--otlp-endpoint: expected a URL such as http://localhost:4318"),
    ],
)
def test_what_cannot_be_shown_is_refused(flag, text, words):
    """A wrong value is told under the name of its flag."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_settings({flag: text}, {})


def test_a_device_that_is_named_outright_undoes_devices() -> None:
    """A flag `--device` is not overruled by `devices` of the environment; next to it, `devices` wins."""
    several = {"KEEPWARM_DEVICES": "cpu,cpu"}
    assert read_settings({}, several).devices == ("cpu", "cpu")
    assert not read_settings({"device": "cpu"}, several).devices
    assert read_settings({"device": "cpu", "devices": "cpu,cpu"}, {}).devices == ("cpu", "cpu")
    assert not read_settings({}, {"KEEPWARM_DEVICE": "cpu"}, {"devices": "cpu,cpu"}).devices
