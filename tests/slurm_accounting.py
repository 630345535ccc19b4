"""Accounting for the small SLURM: a MariaDB and a slurmdbd of its own, in the cluster's folder, so that sacct knows every job for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm_cluster import SmallSlurm

PROGRAMS = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb", "mariadb-install-db")
PLUGIN = "*/slurm*/accounting_storage_mysql.so"
LIMIT_S = 60.0
"""For a command that sets something up, and for a daemon to answer."""


def search_path() -> str:
    """PATH with the folders of daemons."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def not_installed(programs: Sequence[str]) -> list[str]:
    """Those that are not there."""
    return [program for program in programs if shutil.which(program, path=search_path()) is None]


def why_no_accounting() -> str | None:
    """Why a small SLURM, which can be started, cannot have accounting, or None."""
    missing = not_installed(PROGRAMS)
    if not any(Path("/usr/lib").glob(PLUGIN)):
        missing.append("accounting_storage_mysql.so")
    if missing:
        packages = "slurmdbd, slurm-wlm-mysql-plugin, mariadb-server"
        return f"SLURM's accounting is not installed here: no {', '.join(missing)} (Debian: {packages})"
    return None


def accounting_lines(cluster: SmallSlurm) -> dict[str, int | str]:
    """Lines of slurm.conf."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": cluster.ports[1],
        # With munge this is the socket for talking to slurmdbd; AuthInfo is not looked at.
        "AccountingStoragePass": f"{cluster.base}/munge/socket",
    }


def start_accounting(cluster: SmallSlurm) -> None:
    """Start the database, slurmdbd over it, and make the cluster known to it; the controller must not run yet."""
    _, dbd_port, port = cluster.ports[:3]
    password = os.urandom(12).hex()
    _start_database(cluster, port, password)
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={cluster.base}/munge/socket",
        "DbdHost": "localhost",
        "DbdPort": dbd_port,
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": port,
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "slurm_acct_db",
        "PidFile": f"{cluster.base}/slurmdbd.pid",
    }
    conf = cluster.base / "slurmdbd.conf"
    conf.touch(mode=0o600)  # slurmdbd reads no other
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    cluster.launch("slurmdbd", "slurmdbd", "-D")
    cluster.until(
        lambda: _done(cluster, "sacctmgr", "--immediate", "add", "cluster", "small").returncode == 0,
        "slurmdbd",
        LIMIT_S,
    )


def _start_database(cluster: SmallSlurm, port: int, password: str) -> None:
    """A database with one user, as the user mysql: mariadbd refuses to be root."""
    data = cluster.base / "database"
    data.mkdir()
    shutil.chown(data, "mysql", "mysql")
    own = ("--no-defaults", "--user=mysql", f"--datadir={data}")
    _run(cluster, "mariadb-install-db", *own, "--skip-test-db")
    where = (f"--socket={data / 'socket'}", f"--port={port}", "--bind-address=127.0.0.1", f"--pid-file={data / 'pid'}")
    cluster.launch("mariadbd", "mariadbd", *own, *where, "--innodb-flush-log-at-trx-commit=0")
    client = ("mariadb", "--no-defaults", where[0], "--user=root", "--execute")
    cluster.until(lambda: _done(cluster, *client, "SELECT 1").returncode == 0, "mariadbd", LIMIT_S)
    user = "slurm@'127.0.0.1'"
    _run(
        cluster,
        *client,
        f"CREATE USER {user} IDENTIFIED BY '{password}'; GRANT ALL ON slurm_acct_db.* TO {user}",
    )


def _run(cluster: SmallSlurm, *words: str) -> None:
    done = _done(cluster, *words)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip() or done.stdout.strip()}")


def _done(cluster: SmallSlurm, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**cluster.env, "PATH": search_path()}
    return subprocess.run(
        words, env=env, cwd=cluster.base, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
