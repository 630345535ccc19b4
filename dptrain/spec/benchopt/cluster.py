"""`--parallel-config`: how benchopt's submitit backend asks for jobs -> a cluster profile, and what it says of a run's resources.

Keys have submitit's two spellings, `slurm_qos: ...` and `slurm_additional_parameters: {qos: ...}`; both are read as one name.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from dptrain.spec.benchopt.reader import Axis
from dptrain.spec.benchopt.remarks import Notes
from dptrain.spec.benchopt.values import as_int, as_text, is_none, word
from dptrain.spec.cluster import EXTRA_SBATCH_KEYS, FLAG_KEYS
from dptrain.spec.scalars import Unreadable
from dptrain.spec.tree import Entry, Items, Node, Scalar, Table, Where, shown

LOCAL_BACKENDS = ("loky", "torchrun", "threading", "multiprocessing")
RESOURCES = {
    "time": "slurm_time",
    "nodes": "slurm_nodes",
    "ntasks_per_node": "slurm_ntasks_per_node",
    "tasks_per_node": "slurm_ntasks_per_node",
    "gres": "slurm_gres",
}
"""Settings that belong to a run, as solvers call them."""
SAME = ("partition", "account", "qos", "constraint", "cpus_per_task")
"""Settings that a profile calls the same."""
MEMORY = {"mem": "mem_per_node_gib", "mem_gb": "mem_per_node_gib", "mem_per_cpu": "mem_per_cpu_gib"}
_UNITS_GIB = {"": 1 / 1024, "M": 1 / 1024, "G": 1.0, "T": 1024.0}
"""SLURM's units of memory; a bare number is MiB."""


@dataclass(kw_only=True)
class Parallel:
    """What a parallel-config says."""

    local: bool = False
    axes: list[Axis] = field(default_factory=list)
    """Resources of all runs; a solver's own values hold against them."""
    settings: dict[str, Entry] = field(default_factory=dict)
    """Keys of the cluster profile."""


def settings_of(root: Table) -> dict[str, tuple[str, Entry]]:
    """Name without `slurm_`, `-` as `_` -> (as written, its line); the last of two spellings holds."""
    found: dict[str, tuple[str, Entry]] = {}
    for key, entry in root.entries.items():
        if key == "slurm_additional_parameters" and isinstance(entry.value, Table):
            found.update(settings_of(entry.value))
        else:
            found[key.removeprefix("slurm_").replace("-", "_")] = (key, entry)
    return found


def read_parallel(root: Table, notes: Notes) -> Parallel:
    """The parts of a parallel-config."""
    parallel = Parallel()
    for name, (key, entry) in settings_of(root).items():
        if name == "backend":
            parallel.local = _backend(entry.value, notes)
        elif not is_none(entry.value):
            _take(parallel, name, key, entry, notes)
    return parallel


def _take(parallel: Parallel, name: str, key: str, entry: Entry, notes: Notes) -> None:
    """Put one setting where it belongs."""
    if name in RESOURCES or name == "timeout_min":
        try:
            node = _clock(entry.value) if name == "timeout_min" else entry.value
        except Unreadable as error:
            notes.problem(entry.value.where, f"{key} is {error.found}", error.write)
            return
        parameter = RESOURCES.get(name, "slurm_time")
        parallel.axes.append(Axis(section="parallel", keys=(parameter,), rows=((node,),), where=entry.where))
    elif not add_setting(parallel.settings, name, entry, notes):
        notes.unmapped(key, entry.value)


def add_setting(settings: dict[str, Entry], name: str, entry: Entry, notes: Notes) -> bool:
    """Add one setting to those of the profile; False where a profile has no such key."""
    node = entry.value
    if name in SAME:
        settings[name] = entry
    elif name in MEMORY:
        _memory(settings, name, entry, notes)
    elif name == "setup":
        settings["setup"] = Entry(entry.where, _lines(node))
    elif name == "python":
        return _python(settings, entry, notes)
    elif name.replace("_", "-") in EXTRA_SBATCH_KEYS:
        before = settings.get("extra_sbatch")
        table = before.value if before is not None and isinstance(before.value, Table) else Table({}, entry.where)
        flag = name.replace("_", "-")
        value = word("true", node.where) if flag in FLAG_KEYS and shown(node).lower() == "true" else node
        settings["extra_sbatch"] = Entry(table.where, table.with_entry(flag, Entry(entry.where, value)))
    else:
        return False
    return True


def is_setting(name: str) -> bool:
    """Whether a profile has something for it."""
    return name in (*SAME, *MEMORY, "setup", "python") or name.replace("_", "-") in EXTRA_SBATCH_KEYS


def profile_tree(settings: Mapping[str, Entry], gpus_per_node: int, where: Where) -> Table:
    """The profile as a file has it."""
    own = {
        "launcher": Entry(where, word("slurm", where)),
        "gpus_per_node": Entry(where, word(gpus_per_node, where)),
    }
    return Table({**own, **settings}, where)


def _backend(node: Node, notes: Notes) -> bool:
    """Whether runs are local."""
    text = shown(node)
    if text == "submitit" or text in LOCAL_BACKENDS:
        return text != "submitit"
    notes.problem(node.where, f"backend is {text}; dptrain submits to SLURM or runs here", "backend: submitit")
    return False


def _clock(node: Node) -> Scalar:
    """submitit's `timeout_min` in a form that cannot be taken for seconds."""
    minutes = as_int(node, at_least=1)
    return word(f"{minutes // 60}:{minutes % 60:02d}:00", node.where)


def _memory(settings: dict[str, Entry], name: str, entry: Entry, notes: Notes) -> None:
    node = entry.value
    try:
        text = as_text(node).upper().removesuffix("B")
    except Unreadable as error:
        notes.problem(node.where, f"{name} is {error.found}", f"{name}: 32G")
        return
    number, unit = (text[:-1], text[-1:]) if text[-1:] in ("M", "G", "T") else (text, "G" if name == "mem_gb" else "")
    if not number.isdigit() or (int(number) == 0 and name != "mem"):
        notes.problem(node.where, f"{name} is {shown(node)}, not an amount of memory", f"{name}: 32G")
        return
    gib = int(number) * _UNITS_GIB[unit]
    settings[MEMORY[name]] = Entry(entry.where, word(f"{gib:.12g}", node.where))


def _lines(node: Node) -> Node:
    """Shell lines: a list, or a block of text; empty lines and comments are nothing."""
    if not isinstance(node, Scalar):
        return node
    lines = [line.strip() for line in node.text.splitlines()]
    return Items(tuple(Scalar(ln, False, node.where) for ln in lines if ln and not ln.startswith("#")), node.where)


def _python(settings: dict[str, Entry], entry: Entry, notes: Notes) -> bool:
    """The interpreter is the last word; a profiler or container in front of it is a prefix."""
    node = entry.value
    text = node.text if isinstance(node, Scalar) else ""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words or "$" in text or "%" in text:
        notes.unmapped("slurm_python", node, "command_prefix and python of a profile take words without $ and %")
        return True
    settings["python"] = Entry(entry.where, Scalar(words[-1], False, node.where))
    if len(words) > 1:
        prefix = Items(tuple(Scalar(w, False, node.where) for w in words[:-1]), node.where)
        settings["command_prefix"] = Entry(entry.where, prefix)
    return True
