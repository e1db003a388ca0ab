"""Several sites at once, and a breakable line to the database."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stack.local import Stack
from tests.faults.tcp_proxy import TcpProxy
from tests.harness import Site, fresh_site


@pytest.fixture(scope="module")
def make_site(stack_env: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Site]]:
    """Makes one more whole Duly on the shared servers at each call."""
    with ExitStack() as sites:
        yield lambda: sites.enter_context(fresh_site(stack_env, tmp_path_factory.mktemp("site")))


@pytest.fixture
def other(stack_env: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A second Duly with a ledger of its own; databases of tests are copies of one, so they share its id otherwise."""
    with fresh_site(stack_env, tmp_path_factory.mktemp("other")) as made:
        made.sql("UPDATE duly.ledger SET id = gen_random_uuid()")
        yield made


@pytest.fixture
def line(site: Site) -> Iterator[TcpProxy]:
    """Between this test's workers and Postgres; the test itself has a line of its own that holds."""
    with TcpProxy(site.worker_database) as proxy:
        site.environment["DULY_DATABASE_URL"] = proxy.url
        yield proxy
