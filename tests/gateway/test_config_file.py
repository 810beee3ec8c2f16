"""The configuration file: what it can say, what it must not, and how it is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config import SETTINGS
from gateway.config_file import SERVER, FileConfig, read_configuration, read_file, redis_settings
from gateway.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "keepwarm.example.toml"
DIGEST = "ab" * 32
POLICY = "[[policies]]\nname = 'a'\nmodel = 'm'\n"
RATES = "[[rates]]\nmodel = 'm'\ncurrency = 'USD'\nread_multiplier = 0.1\n"
WHOLE = f"""
[server]
port = 9000
ttl = "10m"

[[keys]]
id = "one"
sha256 = "{DIGEST}"
tenant = "team-a"

[classes]
lunch = "90m"

[[policies]]
name = "a"
tenant = "team-a"
default_ttl = "lunch"

[[rates]]
model = "m"
currency = "USD"
input = 3
read_multiplier = 0.1
write_multipliers = {{ "60m" = 2.0, lunch = 2.5 }}

[redis]
url = "redis://someone@shared:6380/2"
timeout = 0.2
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return where it lies."""

    def put(text: str) -> Path:
        path = tmp_path / "keepwarm.toml"
        path.write_text(text)
        return path

    return put


def test_every_table_is_read(write: Write) -> None:
    """A file with all tables gives all of its values, checked."""
    file = read_file(write(WHOLE))
    assert file.server == {"port": "9000", "ttl": "10m", "redis": "redis://someone@shared:6380/2"}
    assert [(key.id, key.sha256, key.tenant) for key in file.keys] == [("one", DIGEST, "team-a")]
    assert file.classes.lengths_s["lunch"] == 5400.0
    (policy,) = file.policies
    assert (policy.name, policy.tenant, policy.default_ttl) == ("a", "team-a", "90m")
    (rates,) = file.rates
    assert (rates.model, rates.input, rates.output) == ("m", 3.0, 0.0)
    assert rates.write_multipliers == {"1h": 2.0, "lunch": 2.5}
    assert file.redis == {"url": "redis://someone@shared:6380/2", "timeout": "0.2"}


def test_a_policy_allows_every_class_of_the_file(write: Write) -> None:
    """Where a policy does not say which durations clients may ask for, named ones are among them."""
    (policy,) = read_file(write(WHOLE)).policies
    assert policy.allowed_ttls == ("5m", "30m", "1h", "90m", "12h", "24h")


def test_an_empty_file_says_nothing(write: Write) -> None:
    """Every table may be absent."""
    assert read_file(write("")) == FileConfig()


def test_flags_and_environment_beat_the_file(write: Write) -> None:
    """The nearer a value is to the command, the more it counts; the file beats defaults only."""
    path = str(write('[server]\nport = 1\nmodel = "file"\nmax_body = "1MiB"'))
    environ = {"KEEPWARM_CONFIG": path, "KEEPWARM_PORT": "2", "KEEPWARM_MODEL": "environment"}
    settings = read_configuration({"port": "3"}, environ).settings
    assert (settings.port, settings.model, settings.max_body, settings.host) == (3, "environment", 1 << 20, "127.0.0.1")


def test_the_flag_names_the_file(write: Write) -> None:
    """`--config` beats KEEPWARM_CONFIG, and without both there is no file."""
    path = str(write("[server]\nport = 9100"))
    assert read_configuration({"config": path}, {"KEEPWARM_CONFIG": "/missing"}).settings.port == 9100
    assert read_configuration({}, {}).file == FileConfig()


def test_every_setting_with_a_flag_can_stand_in_the_file() -> None:
    """The file knows the names of the settings table, and not its own path or what belongs in the environment."""
    assert set(SERVER) == {row.name for row in SETTINGS.values() if row.flag} - {"config"}
    assert not {"admin_key", "cache", "config"} & set(SERVER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sever]\nport = 1", "sever: is not known; did you mean 'server'?"),
        ("[server]\nprot = 1", "[server] prot: is not known; did you mean 'port' in [server]?"),
        ("max_body = 1", "max_body: is not known; did you mean 'max_body' in [server]?"),
        (RATES + "input = -1", "[[rates]] entry 1 input: expected a number from 0, not -1"),
        (RATES + "input = inf", "[[rates]] entry 1 input: expected a number from 0, not inf"),
        (RATES + "inputs = 1", "[[rates]] entry 1 inputs: is not known; did you mean 'input' in [[rates]]?"),
        (RATES, "[[rates]] entry 1: Object missing required field `input`"),
        (
            RATES + "input = 1\nwrite_multipliers = {soon = 1}",
            "[[rates]] entry 1 write_multipliers: a class is meant: expected a duration",
        ),
        (f"{RATES}input = 1\n{RATES}input = 2", "[[rates]] entry 2 model: 'm' has rates before"),
        ("[redis]\ntimeuot = 1", "[redis] timeuot: is not known; did you mean 'timeout' in [redis]?"),
        ("[server]\nxyzzy = 1", "[server] xyzzy: is not known; known are host, port"),
        ("[server]\nconfig = 'x'", "[server] config: is not known"),
        ("[server]\nport = 70000", "[server] port: expected a port from 0 to 65535"),
        ("[server]\nport = true", "[server] port: "),
        ("[server]\nttl = '0s'", "[server] ttl: expected a duration"),
        ("server = 1", "server: Expected `object`"),
        ("[keys]\nid = 'x'", "keys: Expected `array`"),
        ("[[keys]]\nid = 'x'\ntenant = 't'", "[[keys]] entry 1: Object missing required field `sha256`"),
        (f"[[keys]]\nid = 'x'\ntenannt = 't'\nsha256 = '{DIGEST}'", "[[keys]] entry 1 tenannt: is not known; did you"),
        (f"[[keys]]\nid = 'x'\ntenant = ''\nsha256 = '{DIGEST}'", "[[keys]] entry 1 tenant: '' is not a name"),
        ("[[keys]]\nid = 'x'\ntenant = 't'\nsha256 = 'ab'", "[[keys]] entry 1 sha256: is not 64 hexadecimal digits"),
        (f"[[keys]]\nid = 'x'\ntenant = 't'\nsha256 = '{DIGEST}'\n" * 2, "[[keys]] id: is the same for"),
        ("[classes]\nlunch = 'noon'", "[classes] lunch: expected a duration"),
        ("[classes]\nlunch = 90", "[classes] lunch: expected a duration"),
        ("[classes]\n5m = '10m'", "[classes] 5m: "),
        (
            "[[policies]]\nname = 'a'\nmax_tll = '1h'",
            "[[policies]] entry 1 max_tll: is not known; did you mean 'max_ttl'",
        ),
        ("[[policies]]\nmodel = 'a'", "[[policies]] entry 1 name: is missing"),
        (POLICY + "max_ttl = '1m'", "[[policies]] entry 1 default_ttl: '5m' is above"),
        (
            POLICY + "pool_share = 2",
            "[[policies]] entry 1 pool_share: 2.0 is not a share",
        ),
        (
            "[[policies]]\nname = 'a'\nmodel = 'm'\n[[policies]]\nname = 'b'\nmodel = 'm'",
            "[[policies]] entry 2 model: 'b' would",
        ),
        (
            "[[policies]]\nname = 'a'\nmodel = 'm'\n[[policies]]\nname = 'a'\nmodel = 'n'",
            "[[policies]] entry 2 name: 'a' is the",
        ),
        ("[redis]\nurl = 'http://x'", "[redis] url: the Redis URL starts with 'http'"),
        ("[redis]\nurl = 'redis://[::1'", "[redis] url: "),
        ("[redis]\ntimeout = '1h'", "[redis] timeout: 3600 s is not above 0"),
        ("[redis]\nurl = 'redis://a'\n[server]\nredis = 'redis://b'", "[server] redis: is said by [redis] url already"),
        ("[server", "is not TOML: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write: Write, text: str, said: str) -> None:
    """File, table and field are named, and what would fit."""
    path = write(text)
    with pytest.raises(ConfigError) as refusal:
        read_file(path)
    assert str(refusal.value).startswith(f"{path}: {said}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("admin_key = 'hunter2'", "KEEPWARM_ADMIN_KEY"),
        ("[server]\nadmin_key = 'hunter2'", "KEEPWARM_ADMIN_KEY"),
        ("[server]\nsecret = 'hunter2'", "KEEPWARM_SECRET"),
        ("[redis]\nsecret = 'hunter2'", "KEEPWARM_SECRET"),
        ("[redis]\npassword = 'hunter2'", "KEEPWARM_REDIS_PASSWORD"),
        ("[redis]\nurl = 'redis://me:hunter2@host'", "KEEPWARM_REDIS_PASSWORD"),
        ("[server]\nredis = 'unix://me:hunter2@/run/redis'", "KEEPWARM_REDIS"),
        ("[[keys]]\nid = 'a'\ntenant = 'a'\nkey = 'hunter2'", "sha256"),
        ("[[keys]]\nid = 'a'\ntenant = 'a'\nsha256 = 'hunter2'", "sha256sum"),
    ],
)
def test_secrets_are_refused_and_not_repeated(write: Write, text: str, said: str) -> None:
    """A secret in the file is refused with the place where it belongs, and does not reach the terminal."""
    with pytest.raises(ConfigError) as refusal:
        read_file(write(text))
    assert said in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_class_may_be_called_secret(write: Write) -> None:
    """Names that the operator chooses are no fields."""
    assert read_file(write("[classes]\nsecret = '7m'")).classes.lengths_s["secret"] == 420.0


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are named."""
    (tmp_path / "latin").write_bytes(b"# \xe9")
    for name, said in (("missing", "No such file"), (".", "directory"), ("latin", "UTF-8")):
        with pytest.raises(ConfigError, match=said):
            read_file(tmp_path / name)


def test_redis_is_put_together_from_all_places(write: Write) -> None:
    """The URL's own options win, then the environment's, then the file's; the password comes from the environment."""
    path = str(write("[redis]\nurl = 'redis://me@shared:6380/2?prefix=mine:'\nprefix = 'file:'\ntimeout = '70ms'"))
    environ = {"KEEPWARM_SECRET": "s", "KEEPWARM_REDIS_PASSWORD": "p"}
    found = redis_settings(read_configuration({"config": path}, environ), environ)
    assert found is not None
    assert (found.where, found.username, found.password) == ("shared:6380/2", "me", "p")
    assert (found.prefix, found.timeout_s) == ("mine:", 0.07)
    flags = {"config": path, "redis": "redis://flag"}
    found = redis_settings(read_configuration(flags, environ), environ | {"KEEPWARM_REDIS_TIMEOUT": "80ms"})
    assert found is not None
    assert (found.where, found.prefix, found.timeout_s) == ("flag:6379/0", "file:", 0.08)


def test_no_redis_is_no_redis() -> None:
    """Where nothing names a server, none is used; where one is named without a secret, it is refused."""
    assert redis_settings(read_configuration({}, {}), {}) is None
    with pytest.raises(ConfigError, match="KEEPWARM_SECRET"):
        redis_settings(read_configuration({"redis": "redis://flag"}, {}), {})


def check(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `keepwarm config check`."""
    cleared = {row.env: environ.get(row.env) for row in SETTINGS.values()}
    done = CliRunner().invoke(app, ["config", "check", *arguments], env=cleared | {"COLUMNS": "200", "NO_COLOR": "1"})
    return done.exit_code, done.stdout, done.stderr


def test_the_example_is_valid() -> None:
    """The example in the repository passes, and shows its keys without their digests."""
    code, shown, errors = check(str(EXAMPLE))
    assert (code, errors) == (0, "")
    digests = [key.sha256 for key in read_file(EXAMPLE).keys]
    assert len(digests) == 2
    assert not [digest for digest in digests if digest[:8] in shown]
    for word in ("chat-2025", "lunch", "90m", "32MiB", "[server] max_body", "default"):
        assert word in shown


def test_the_commented_tables_of_the_example_are_valid(write: Write) -> None:
    """What the example leaves commented out can be used as it stands."""
    text = EXAMPLE.read_text()
    head, mark, tail = text.partition("# [redis]\n")
    assert mark
    file = read_file(write(head + "[redis]\n" + tail.replace("# ", "")))
    assert file.redis.keys() == {"url", "prefix", "timeout"}


def test_check_says_where_each_setting_is_from(write: Write) -> None:
    """As JSON: values with their origins, keys by id and tenant, secrets not at all."""
    environ = {"KEEPWARM_PORT": "9001", "KEEPWARM_ADMIN_KEY": "hunter2", "KEEPWARM_REDIS": "redis://me:hunter2@there"}
    code, shown, _ = check(str(write(WHOLE)), "--json", **environ)
    told = json.loads(shown)
    assert code == 0
    assert told["keys"] == [{"id": "one", "tenant": "team-a"}]
    assert told["server"]["port"] == {"value": "9001", "source": "KEEPWARM_PORT"}
    assert told["server"]["ttl"] == {"value": "10m", "source": "[server] ttl"}
    assert told["server"]["max_num_seqs"] == {"value": "16", "source": "default"}
    assert told["server"]["redis"] == {"value": "there:6379/0", "source": "KEEPWARM_REDIS"}
    assert told["server"]["admin_key"] == {"value": "set", "source": "KEEPWARM_ADMIN_KEY"}
    assert told["classes"]["lunch"] == "90m"
    assert [policy["name"] for policy in told["policies"]] == ["a"]
    assert "hunter2" not in shown
    assert DIGEST not in shown


def test_check_takes_the_file_of_the_environment(write: Write) -> None:
    """Without an argument KEEPWARM_CONFIG is checked; without both it is said what to give."""
    assert check(KEEPWARM_CONFIG=str(write(WHOLE)))[0] == 0
    code, shown, errors = check()
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert "KEEPWARM_CONFIG" in errors


def test_check_refuses_in_one_line(write: Write) -> None:
    """A wrong file, or settings that cannot stand together, are one line and exit code 2."""
    for text, said in (("[server]\nprot = 1", "port"), ("[server]\nadmin_host = '0.0.0.0'", "KEEPWARM_ADMIN_KEY")):
        code, shown, errors = check(str(write(text)))
        assert (code, shown, errors.count("\n")) == (2, "", 1)
        assert said in errors


def test_serve_refuses_a_wrong_file(write: Write) -> None:
    """`keepwarm serve` reads the same file in the same way, before it starts anything."""
    done = CliRunner().invoke(app, ["serve", "--config", str(write("[server]\nprot = 1"))])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "[server] prot: is not known; did you mean 'port'" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--deterministic"], "--deterministic computes on a CPU, not on cuda"),
        (["--deterministic", "on"], "--deterministic computes on a CPU, not on cuda"),
        (["--deterministic", "--max-num-seqs", "8"], "--deterministic computes on a CPU, not on cuda"),
        (["--deterministic", "maybe"], "--deterministic: expected on or off, not 'maybe'"),
    ],
)
def test_deterministic_may_stand_alone(given: list[str], said: str) -> None:
    """`--deterministic` means on, before another option, at the end and with a value; a wrong value is named."""
    done = CliRunner().invoke(app, ["serve", "--device", "cuda", *given])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
