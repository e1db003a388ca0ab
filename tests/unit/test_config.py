"""duly.toml and the environment: every fault is named with its line and a remedy, all at once."""

import io
import json
import logging
from pathlib import Path

import pytest
import structlog

from config import logs
from config.environment import REPOSITORY, Environment
from config.kinds import FLIGHT_BOUND, STALL_BOUND, WATCHDOG_LIMIT, default_settle, least_settle
from config.locate import locate
from config.problems import ConfigError, UnavailableError
from config.settings import load
from reconcile import watchdog

GOOD = """\
[providers.mail]
adapter = "http"
url = "${MAIL_URL}/send"
call_limit = "10s"

[providers.mail.idempotency]
header = "Idempotency-Key"
retention = "24h"

[connections.main]
provider = "mail"

[connections.main.headers]
Authorization = "Bearer ${MAIL_TOKEN:-none}"

[kinds."order.confirmation"]
connection = "main"
owner = "orders"
required = ["order_id"]
max_attempts = 5
backoff = { base = "2s", cap = "5m" }
"""


def faults(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "duly.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_the_repositorys_own_file_is_good() -> None:
    settings = load(REPOSITORY / "duly.toml", {"DULY_SANDBOX_URL": "http://127.0.0.1:1"})
    kinds, connections = settings.ledger_rows()
    assert connections == [{"name": "main", "provider": "sandbox"}]
    (kind,) = kinds
    assert kind == {
        "name": "order.confirmation", "connection": "main", "owner": "orders", "required": ["order_id"],
        "max_attempts": 5, "call_limit": 10.0, "lease": 15.0, "settle": 120.0, "accepted_bound": 3600.0,
        "start_lead": 0.0,
    }  # fmt: skip
    policy = settings.policy("order.confirmation")
    assert (policy.provider, policy.backoff_base, policy.backoff_cap) == ("sandbox", 2.0, 300.0)
    assert settings.used_providers() == ["sandbox"]


def test_the_default_settle_time_is_never_below_the_lease_and_counts_the_providers_processing() -> None:
    assert default_settle(15, 0) == 120
    assert default_settle(305, 0) == 305
    assert default_settle(15, 600) == 720


def test_the_least_settle_time_covers_a_frozen_worker_the_flight_of_its_bytes_and_the_providers_processing() -> None:
    assert least_settle(15, 0) == STALL_BOUND + FLIGHT_BOUND == 90
    assert least_settle(15, 600) == 690
    assert least_settle(605, 0) == 605  # a call may take as long as its lease


def test_the_watchdog_kills_a_frozen_worker_within_the_stall_that_the_settle_time_allows_for() -> None:
    # A tick may have come just before the freeze began; the look may come late by all that is forgiven.
    assert watchdog.TICK + WATCHDOG_LIMIT + watchdog.PERIOD + watchdog.OWN_GAP < STALL_BOUND


# (what is replaced, by what, the line named, what the message must say, what the remedy must say)
BAD = [
    ('adapter = "http"', 'adapter = "smtp"', 2, "providers.mail.adapter: adapter = 'smtp' does not exist", "http"),
    ('adapter = "http"\n', "", 1, "providers.mail.adapter", 'adapter = "http"'),
    ('url = "${MAIL_URL}/send"\n', "", 1, "providers.mail.url: is missing", "Add for example url ="),
    ("${MAIL_URL}/send", "ftp://x", 3, "must start with http://", ""),
    ("${MAIL_URL}/send", "http://x/{order}", 3, "{order} is not known here", "{key}"),
    ('"10s"', "10", 4, "providers.mail.call_limit: 10 is not a duration", "10s"),
    ('"10s"', '"10 s"', 4, "'10 s' is not a duration", "10s"),
    ('"10s"', '"0s"', 4, "must be more than nothing", ""),
    ('"10s"', '"11m"', 4, "call_limit: is over ten minutes", "10m"),
    ('call_limit = "10s"', 'call_limt = "10s"', 4, "call_limt: is not known here", "Did you mean call_limit?"),
    ('header = "Idempotency-Key"\n', "", 6, "providers.mail.idempotency.header: is missing", "Idempotency-Key"),
    ('retention = "24h"', 'retention = "24h"\nqoted = true', 9, "idempotency.qoted: is not known", "quoted"),
    ('provider = "mail"', 'provider = "mial"', 11, "connections.main.provider: names 'mial'", "Did you mean 'mail'?"),
    ("Authorization", "Host", 13, "Host is written by Duly itself", ""),
    ('connection = "main"', 'connection = "other"', 17, "names 'other', which does not exist", "There is: main"),
    ('owner = "orders"\n', "", 16, 'kinds."order.confirmation".owner: is missing', "owner ="),
    ('owner = "orders"', "owner = 7", 18, "owner: must be text", "quotes"),
    ('required = ["order_id"]', 'required = "order_id"', 19, "required: must be a list", "["),
    ("max_attempts = 5", "max_attempts = 0", 20, "max_attempts: is 0", "at least 1"),
    ("max_attempts = 5", 'max_attempts = "5"', 20, "must be a whole number", "without quotes"),
    ("max_attempts = 5", "max_attempts = true", 20, "must be a whole number", ""),
    ('base = "2s"', 'base = "10m"', 21, "backoff: has a base longer than its cap", "cap"),
    ('base = "2s"', 'bse = "2s"', 21, "backoff.bse: is not known here", "Did you mean base?"),
    ("max_attempts = 5", 'settle = "10s"', 20, "settle: is shorter than 90 s", "default"),
    ('[kinds."order.confirmation"]', '[kinds."1 2"]', 16, 'kinds."1 2": is not a usable name', "letter"),
    ("[connections.main]", "[conections.main]", 10, "conections: is not known here", "connections"),
    ("max_attempts = 5", "max_attempts = = 5", 20, "this is not TOML", "toml.io"),
]


@pytest.mark.parametrize(("old", "new", "line", "what", "remedy"), BAD, ids=[f"{new or old!r}" for old, new, *_ in BAD])
def test_a_fault_is_named_with_its_line_and_a_remedy(
    tmp_path: Path, old: str, new: str, line: int, what: str, remedy: str
) -> None:
    assert old in GOOD
    found = faults(tmp_path, GOOD.replace(old, new, 1))
    assert any(fault.startswith(f"{line}: ") and what in fault and remedy in fault for fault in found), found


def test_every_fault_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace('"10s"', "10").replace('provider = "mail"', 'provider = "x"').replace("= 5", "= 0")
    assert [fault.split(":")[0] for fault in faults(tmp_path, text)] == ["4", "11", "20"]


def test_a_fault_in_a_provider_does_not_make_its_connections_faulty(tmp_path: Path) -> None:
    assert len(faults(tmp_path, GOOD.replace('"10s"', "10"))) == 1


def test_a_missing_variable_is_named_with_its_line_only_where_providers_are_used(tmp_path: Path) -> None:
    path = tmp_path / "duly.toml"
    path.write_text(GOOD)
    load(path)
    (fault,) = faults(tmp_path, GOOD, {})
    assert fault.startswith("3: providers.mail.url: the environment variable MAIL_URL is not set")
    load(path, {"MAIL_URL": "http://mail"})


def test_a_file_that_is_missing_or_not_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")
    assert faults(tmp_path, b'[providers.a]\nname = "\xff"')[0].startswith("2: this is not UTF-8")


def test_lines_are_found_behind_long_values_comments_and_dotted_keys() -> None:
    text = '# a\n[a."b.c"]\nx = """\n[no]\ny = 1\n"""\nlist = [\n  1,\n  2,\n]\nd.e = 1\ninline = { f = { g = 1 } }\n'
    assert locate(("a", "b.c", "x"), text) == 3
    assert locate(("a", "b.c", "list"), text) == 7
    assert locate(("a", "b.c", "d", "e"), text) == 11
    assert locate(("a", "b.c", "inline", "f", "g"), text) == 12
    assert locate(("a", "b.c", "absent"), text) == 2
    assert locate(("y",), text) == 1


def test_the_environment_is_read_with_its_defaults(tmp_path: Path) -> None:
    env = Environment.read({"DULY_HOME": str(tmp_path), "DULY_DATABASE_URL": "postgresql://db/shop"})
    assert env.database() == env.database(worker=True) == "postgresql://db/shop"
    assert (env.log_level, env.health_port, env.config_path.name) == ("INFO", 8378, "duly.toml")
    with pytest.raises(UnavailableError, match=r"\./duly up"):
        Environment.read({"DULY_HOME": str(tmp_path)}).database()


def test_secrets_are_not_part_of_how_an_environment_prints(tmp_path: Path) -> None:
    assert "hunter2" not in repr(Environment.read({"DULY_HOME": str(tmp_path), "MAIL_TOKEN": "hunter2"}))


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("DULY_DATABSE_URL", "postgresql://db/shop", "Did you mean DULY_DATABASE_URL?"),
        ("DULY_DATABASE_URL", "mysql://db/shop", "postgresql://"),
        ("DULY_LOG_LEVEL", "loud", "WARNING"),
        ("DULY_HEALTH_PORT", "80000", "port number"),
    ],
)
def test_a_variable_that_cannot_be_used_is_an_error_with_a_remedy(
    tmp_path: Path, name: str, value: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Environment.read({"DULY_HOME": str(tmp_path), name: value})
    assert name in str(caught.value)
    assert remedy in str(caught.value)


def test_variables_named_in_duly_toml_are_known(tmp_path: Path) -> None:
    path = tmp_path / "duly.toml"
    path.write_text(GOOD.replace("MAIL_URL", "DULY_MAIL_URL"))
    env = Environment.read({"DULY_CONFIG": str(path), "DULY_HOME": str(tmp_path), "DULY_MAIL_URL": "http://x"})
    load(path, env.variables)


def test_what_comes_from_the_environment_is_a_secret_for_logs_but_for_addresses(tmp_path: Path) -> None:
    path = tmp_path / "duly.toml"
    path.write_text(GOOD)
    settings = load(path, {"MAIL_URL": "http://x", "MAIL_TOKEN": "hunter2-token", "OTHER": "not named"})
    assert settings.secrets == {"hunter2-token"}
    assert "hunter2" not in repr(settings)


def test_log_lines_hold_neither_payloads_nor_secrets() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure("INFO", stream=stream, secrets=["hunter2-token"])
        structlog.get_logger("a").info("sent", payload={"name": "CANARY"}, url="http://x/?k=hunter2-token")
        logging.getLogger("b").warning("failed with %s", "hunter2-token", extra={"headers": {"x": "CANARY"}})
        try:
            secret = "CANARY"  # a local variable of the frame
            raise ValueError("hunter2-token" + secret[:0])
        except ValueError:
            logging.getLogger("c").exception("broken")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["sent", "failed with [hidden]", "broken"]
    assert "ValueError: [hidden]" in lines[2]["exception"]
    assert "CANARY" not in stream.getvalue().replace('secret = "CANARY"', "")
    assert "hunter2" not in stream.getvalue().replace('"hunter2-token"', "")
