"""A real small SLURM on this machine: one slurmctld, four slurmd (n1-n4), a private munged, four pretend GPUs per node.

Everything lies in one new folder under the temporary directory, on probed ports, with accounting off unless asked for (then with a
MariaDB and a slurmdbd of its own); nothing of a SLURM, munge or database that runs here already is used or touched. It stops by pid
what it started and nothing else.

    python -m tests.slurm_cluster up      starts one and prints the line that makes this shell use it
    python -m tests.slurm_cluster down    stops it
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dptrain.records.process import start_ticks
from tests.slurm_accounting import accounting_lines, not_installed, search_path, start_accounting

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".slurm" / "state.json"
NODES = ("n1", "n2", "n3", "n4")
GPUS = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel")
START_TIMEOUT_S = 40.0
STOP_TIMEOUT_S = 30.0
HOSTS = Path("/etc/hosts")


def why_not() -> str | None:
    """Why a small SLURM cannot be started here, or None."""
    if missing := not_installed(PROGRAMS):
        return f"SLURM is not installed here: no {', '.join(missing)} (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "the small SLURM has to be started by root"
    return None


class SmallSlurm:
    """One cluster. `with SmallSlurm() as slurm:` starts it, waits until its nodes are idle, and stops it."""

    def __init__(self, *, accounting: bool = False, **settings: int | str) -> None:
        """
        :param accounting: with slurmdbd and a database, so that sacct knows every job for ever.
        :param settings: lines of slurm.conf that replace or add to the defaults, e.g. `MinJobAge=2, MaxArraySize=5`.
        """
        self.accounting, self.settings = accounting, settings
        self.base = Path(tempfile.mkdtemp(prefix="dptrain-slurm-"))
        self.base.chmod(0o755)
        self.conf = self.base / "slurm.conf"
        self.started: list[tuple[str, int, int | None]] = []
        """(program, pid, start time) of every daemon."""
        self._children: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []

    @property
    def env(self) -> dict[str, str]:
        """This process' environment, with the cluster's configuration."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> SmallSlurm:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle."""
        add_host_names()
        for folder in ("state", "spool", "log", "munge"):
            (self.base / folder).mkdir()
        key = self.base / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.write_configuration()
        self._start_munge(key)
        if self.accounting:
            start_accounting(self)
        self.launch("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in NODES:
            self.launch(f"slurmd-{node}", "slurmd", "-D", "-f", str(self.conf), "-N", node)
        self._wait_for_nodes()

    def stop(self) -> None:
        """End jobs, then daemons, then check that nothing is left."""
        if any(name == "slurmctld" for name, _, _ in self.started):
            self._end_jobs()
        for name, pid, ticks in reversed(self.started):
            self._end(name, pid, ticks)
        for child in self._children:
            child.wait(timeout=10)
        left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)
        self.started, self._children = [], []
        if left:
            raise RuntimeError(f"processes of the small SLURM were left and are killed now: {left}")

    def command(self, *words: str, timeout_s: float = 30) -> str:
        """Run a SLURM command against this cluster; its stdout."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 60) -> str:
        """Wait until squeue shows the job in one of the states (`RUNNING`, `COMPLETED`, ...)."""
        deadline = time.monotonic() + timeout_s
        state = ""
        while time.monotonic() < deadline:
            lines = self.command(
                "squeue", "--states=all", "--noheader", "--array", "--format=%T", f"--jobs={job_id}"
            ).split()
            state = lines[0] if lines else ""
            if state in states:
                return state
            time.sleep(0.2)
        raise TimeoutError(f"job {job_id} is {state or 'unknown'}, not {' or '.join(states)}, after {timeout_s:.0f} s")

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's slurmd, so that the controller loses the node; what ran there runs on."""
        name, pid, _ = next(entry for entry in self.started if entry[0] == f"slurmd-{node}")
        os.kill(pid, signal.SIGKILL)
        self.started = [entry for entry in self.started if entry[0] != name]

    def kill_node(self, node: str) -> None:
        """Kill all of a node, as when it loses its power."""
        self.kill_slurmd(node)
        ranks = [p for p in self.processes() if f"SLURMD_NODENAME={node}".encode() in _read(p, "environ").split(b"\0")]
        # Their slurmstepd first: it would still tell the controller that they were killed.
        above = {int(_read(p, "stat").rpartition(b")")[2].split()[1]) for p in ranks}
        for each in [p for p in above if _read(p, "cmdline").startswith(b"slurmstepd")] + ranks:
            os.kill(each, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Start a killed node's slurmd again."""
        self.launch(f"slurmd-{node}", "slurmd", "-D", "-f", str(self.conf), "-N", node)

    def processes(self) -> list[int]:
        """Daemons and job processes of this cluster, known by its folder in their command line or job environment."""
        mine = str(self.base).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid() or start_ticks(int(entry.name)) is None:
                continue
            command, environment = _read(int(entry.name), "cmdline"), _read(int(entry.name), "environ")
            in_job = b"SLURM_JOB_ID=" in environment or command.startswith(b"slurmstepd")
            if mine in command.replace(b"\0", b" ") or (in_job and mine in environment):
                found.append(int(entry.name))
        return sorted(found)

    def launch(self, name: str, *words: str) -> None:
        """Start a daemon that `stop` ends; those started last go first."""
        program = shutil.which(words[0], path=search_path())
        assert program is not None, words[0]
        # A job of an outer allocation must not be seen by the daemons.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        env |= {"SLURM_CONF": str(self.conf), "PATH": search_path()}
        with (self.base / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [program, *words[1:]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.base,
            )
        self._children.append(child)
        self.started.append((name, child.pid, start_ticks(child.pid)))

    def _start_munge(self, key: Path) -> None:
        munge = self.base / "munge"
        options = {"key-file": key, "pid-file": munge / "pid", "log-file": munge / "log", "seed-file": munge / "seed"}
        words = [f"--{name}={path}" for name, path in options.items()]
        self.launch("munged", "munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *words)
        self.until((munge / "socket").exists, "munged", 10)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll while a daemon starts."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not start: {self._logs()}")
            time.sleep(0.05)

    def change(self, **settings: int | str) -> None:
        """Change lines of slurm.conf while the cluster runs."""
        self.settings = {**self.settings, **settings}
        self.write_configuration()
        self.command("scontrol", "reconfigure")

    def write_configuration(self) -> None:
        """Write slurm.conf and gres.conf; ports are probed the first time."""
        ports = self.ports = self.ports or free_ports(3 + len(NODES))
        host = socket.gethostname()
        base = self.base
        settings: dict[str, int | str] = {
            "ClusterName": "small",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            # A requeued job waits as long as a credential lives: two minutes where nothing is said.
            "AuthInfo": f"socket={base}/munge/socket,cred_expire=20",
            "StateSaveLocation": f"{base}/state",
            "SlurmdSpoolDir": f"{base}/spool/%n",
            "SlurmctldPidFile": f"{base}/slurmctld.pid",
            "SlurmdPidFile": f"{base}/slurmd-%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SlurmdParameters": "config_overrides",
            "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0",
            "MpiDefault": "none",
            "ReturnToService": 2,
            "AccountingStorageType": "accounting_storage/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "MinJobAge": 300,
            "KillWait": 5,
            "InactiveLimit": 0,
            "SlurmctldTimeout": 30,
            "SlurmdTimeout": 20,
            "MaxArraySize": 1001,
            "GresTypes": "gpu",
        }
        if self.accounting:
            settings |= accounting_lines(self)
        settings |= self.settings
        lines = [f"{key}={value}" for key, value in settings.items()]
        for node, port in zip(NODES, ports[3:], strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=64000 Gres=gpu:{GPUS}"
            )
        lines.append("PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP")
        lines.append("PartitionName=short Nodes=n[1-2] MaxTime=10 State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        (base / "gres.conf").write_text(self._gres())

    def _gres(self) -> str:
        """Pretend GPUs: character devices, since SLURM refuses plain files; without the right to make them, only a count."""
        devices = self.base / "dev"
        devices.mkdir(exist_ok=True)
        try:
            for number in range(0 if any(devices.iterdir()) else GPUS):
                os.mknod(devices / f"gpu{number}", 0o666 | 0o020000, os.makedev(240, number))
        except PermissionError:
            return f"AutoDetect=off\nName=gpu Count={GPUS}\n"
        return f"AutoDetect=off\nName=gpu File={devices}/gpu[0-{GPUS - 1}]\n"

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        said = ""
        while time.monotonic() < deadline:
            try:
                said = self.command("sinfo", "--noheader", "--Node", "--partition=main", "--format=%t")
            except RuntimeError as error:
                said = str(error)
            if said.split() == ["idle"] * len(NODES):
                return
            time.sleep(0.2)
        raise TimeoutError(f"the small SLURM did not start: {said.strip()}\n{self._logs()}")

    def _logs(self) -> str:
        return "\n".join(
            f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in (self.base / "log").glob("*")
        )

    def _end_jobs(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        try:
            self.command("scancel", "--user=root", timeout_s=10)
            while time.monotonic() < deadline and self.command("squeue", "--noheader", timeout_s=10).strip():
                time.sleep(0.2)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"small SLURM: jobs could not be ended in order: {error}", file=sys.stderr)

    def _end(self, name: str, pid: int, ticks: int | None) -> None:
        if start_ticks(pid) != ticks or ticks is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while start_ticks(pid) == ticks:
            if time.monotonic() > deadline:
                print(f"small SLURM: {name} (pid {pid}) did not end by SIGTERM", file=sys.stderr)
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has just ended
        return b""


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for each in sockets:
        each.close()
    return ports


def add_host_names() -> None:
    """Make n1-n4 known as this machine, once."""
    known = {name for line in HOSTS.read_text().splitlines() for name in line.split("#")[0].split()[1:]}
    missing = [node for node in NODES if node not in known]
    if missing:
        with HOSTS.open("a") as hosts:
            hosts.write(f"127.0.0.1 {' '.join(missing)} # nodes of a small SLURM on this machine\n")


def up() -> int:
    """Start a cluster that outlives this command."""
    if STATE.exists():
        state = json.loads(STATE.read_text())
        if all(start_ticks(pid) == ticks for _, pid, ticks in state["started"]):
            print(f"export SLURM_CONF={state['base']}/slurm.conf")
            return 0
        down()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    slurm = SmallSlurm()
    try:
        slurm.start()
    except BaseException:
        slurm.stop()
        raise
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text(json.dumps({"base": str(slurm.base), "started": slurm.started}))
    print(f"export SLURM_CONF={slurm.conf}")
    return 0


def down() -> int:
    """Stop the cluster that `up` started."""
    if not STATE.exists():
        print("no small SLURM was started from this checkout")
        return 0
    state = json.loads(STATE.read_text())
    slurm = SmallSlurm.__new__(SmallSlurm)
    slurm.base, slurm.conf = Path(state["base"]), Path(state["base"]) / "slurm.conf"
    slurm.started, slurm._children = [tuple(entry) for entry in state["started"]], []
    STATE.unlink()
    slurm.stop()
    print("stopped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["up"], ["down"]):
        sys.exit("usage: python -m tests.slurm_cluster up|down")
    sys.exit(up() if sys.argv[1] == "up" else down())
