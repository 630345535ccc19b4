"""Cluster profiles by name: users' own first, then the built-in ones. Read as strictly as specs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from dptrain.errors import Problem, SpecError
from dptrain.spec.advice import dotted, nearest
from dptrain.spec.build import Bad, Builder
from dptrain.spec.build import Path as KeyPath
from dptrain.spec.cluster import EXTRA_SBATCH_KEYS, FLAG_KEYS, ClusterProfile
from dptrain.spec.constraints import ENV_NAME, HEADER_WORD, NAME
from dptrain.spec.load import as_table
from dptrain.spec.tree import Found, Node, Scalar, Source, Table, raise_found, read_bytes, read_tree, shown

OWN_LINES = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "gres": "gpu_request and gpus_per_node",
    "gpus": "gpu_request and gpus_per_node",
    "gpus-per-node": "gpu_request and gpus_per_node",
    "gpus-per-task": "gpu_request and gpus_per_node",
    "mem": "mem_per_node_gib",
    "mem-per-cpu": "mem_per_cpu_gib",
    "cpus-per-task": "cpus_per_task",
    "time": "resources.time_min of the spec",
    "nodes": "resources.gpus of the spec and gpus_per_node",
    "ntasks": "resources.gpus of the spec",
    "ntasks-per-node": "gpus_per_node",
    "signal": "run.signal_lead_s of the spec",
}
"""Header lines that come from a key of their own."""
LAUNCHERS_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM_ONLY = (
    "partition",
    "account",
    "qos",
    "constraint",
    "mem_per_cpu_gib",
    "mem_per_node_gib",
    "extra_sbatch",
    "restart",
)


def user_folder() -> Path:
    """Where users keep profiles of their own."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "dptrain" / "clusters"


def profile_names() -> list[str]:
    """Every name that `load_profile` takes, sorted."""
    return sorted({*own_profile_names(), *_built_in()})


def own_profile_names() -> list[str]:
    """Names of the user's own profiles, also of one that replaces a built-in one, sorted."""
    return sorted(p.name.removesuffix(".yaml") for p in _folder_files(user_folder()))


def load_profile(name: str) -> ClusterProfile:
    """The profile of a name. Raises SpecError where there is none, or with all that is wrong with its file."""
    path = user_folder() / f"{name}.yaml"
    if NAME.complaint(name) is None and path.is_file():
        source = Source(label=str(path), folder=path.parent.absolute())
        return parse_profile(read_bytes(path.read_bytes(), source), name, source)
    if name in _built_in():
        text = files("dptrain.templates").joinpath("clusters", f"{name}.yaml").read_text(encoding="utf-8")
        return parse_profile(text, name, Source(label=f"{name}.yaml (built-in)", folder=Path.cwd()))
    near = nearest(name, profile_names())
    found = f"there is none called {name!r}; there are: {', '.join(profile_names())}"
    raise SpecError([Problem("cluster profile", found, near or f"a file {user_folder()}/NAME.yaml")])


def parse_profile(text: str, name: str, source: Source) -> ClusterProfile:
    """A profile from its text."""
    node, structural = read_tree(text, source)
    return build_profile(as_table(node, source, "a cluster profile", "launcher: slurm"), name, structural)


def build_profile(root: Table, name: str, structural: Sequence[Found] = ()) -> ClusterProfile:
    """A profile from its tree, whatever that was read from. Raises SpecError with all that is wrong with it."""
    builder = Builder(special={("extra_sbatch",): _extra_sbatch, ("env",): _env, ("name",): _no_name}, is_spec=False)
    profile: ClusterProfile = builder.section(ClusterProfile, root, ())
    _check(profile, builder)
    raise_found([*structural, *(f for f in builder.found if f.path != ("name",) or "name" in root.entries)])
    return ClusterProfile(**{**vars(profile), "name": name})


def _check(profile: ClusterProfile, builder: Builder) -> None:
    at = builder.at
    if (
        ("mem_per_cpu_gib",) in at
        and ("mem_per_node_gib",) in at
        and profile.mem_per_cpu_gib is not None
        and profile.mem_per_node_gib is not None
    ):
        where = max(at[("mem_per_cpu_gib",)], at[("mem_per_node_gib",)], key=lambda w: w.line)
        builder.note(
            ("mem_per_cpu_gib",), where, "mem_per_cpu_gib and mem_per_node_gib contradict each other", "one of them"
        )
    if profile.launcher == "local":
        for key in SLURM_ONLY:
            if (key,) in at and getattr(profile, key):
                builder.note(
                    (key,), at[(key,)], f"{key} has no meaning with launcher: local", f"launcher: slurm, or no {key}"
                )


def _extra_sbatch(builder: Builder, node: Node, path: KeyPath) -> dict[str, str]:
    if not isinstance(node, Table):
        builder.note(
            path, node.where, f"extra_sbatch is {shown(node)}, not a mapping", "extra_sbatch: {reservation: NAME}"
        )
        raise Bad
    lines: dict[str, str] = {}
    for key, entry in node.entries.items():
        inner = (*path, key)
        if key not in EXTRA_SBATCH_KEYS:
            own = OWN_LINES.get(key.replace("_", "-"))
            near = nearest(key, EXTRA_SBATCH_KEYS)
            write = own or (f"{near}: {shown(entry.value)}" if near else "")
            more = f"; it comes from {own}" if own else f"; legal keys: {', '.join(EXTRA_SBATCH_KEYS)}"
            builder.note(inner, entry.where, f"{dotted(inner)} is not for extra_sbatch{more}", write)
            continue
        if key in FLAG_KEYS and isinstance(entry.value, Scalar) and entry.value.text == "true":
            lines[key] = ""
            continue
        try:
            text = builder.value(entry.value, str, inner)
        except Bad:
            continue
        complaint = HEADER_WORD.complaint(text)
        if complaint is not None:
            builder.note(inner, entry.value.where, f"{dotted(inner)} is {shown(entry.value)}; it takes {complaint}", "")
        lines[key] = text
    return lines


def _env(builder: Builder, node: Node, path: KeyPath) -> dict[str, str]:
    if isinstance(node, Table):
        for key, entry in node.entries.items():
            if ENV_NAME.complaint(key) is not None:
                builder.note(
                    (*path, key), entry.where, f"{key!r} is no name of a variable: it takes {ENV_NAME.says}", ""
                )
            elif key in LAUNCHERS_OWN:
                builder.note(
                    (*path, key), entry.where, f"env.{key} is set by the launcher for each rank", "no such line"
                )
    return builder.texts(node, path)


def _no_name(builder: Builder, node: Node, path: KeyPath) -> str:
    builder.note(
        path, node.where, "name is not a key of a cluster profile: its name is that of its file", "no such line"
    )
    raise Bad


def _built_in() -> list[str]:
    return [
        p.name.removesuffix(".yaml")
        for p in files("dptrain.templates").joinpath("clusters").iterdir()
        if p.name.endswith(".yaml")
    ]


def _folder_files(folder: Path) -> Iterator[Path]:
    return folder.glob("*.yaml")
