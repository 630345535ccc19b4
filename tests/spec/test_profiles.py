"""Cluster profiles: built-in ones, users' own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import SpecError
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.profiles import load_profile, parse_profile, profile_names, user_folder
from dptrain.spec.tree import Source


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_folder().mkdir(parents=True)
    return user_folder()


def profile_of(text: str) -> ClusterProfile:
    return parse_profile(text, "site", Source(label="site.yaml", folder=Path("/sites")))


def test_built_in_profiles() -> None:
    assert profile_names() == ["generic-slurm", "jean-zay", "local"]
    assert load_profile("local").launcher == "local"
    assert load_profile("generic-slurm").launcher == "slurm"
    jean_zay = load_profile("jean-zay")
    assert (jean_zay.partition, jean_zay.constraint, jean_zay.gpu_request) == ("gpu_p13", "v100-32g", "gres")
    assert (jean_zay.gpus_per_node, jean_zay.cpus_per_task, jean_zay.gpu_memory_gib) == (4, 10, 32)
    assert (jean_zay.mem_per_cpu_gib, jean_zay.mem_per_node_gib) == (None, None)
    assert jean_zay.extra_sbatch == {"hint": "nomultithread"}


def test_a_users_own_wins(own_folder: Path) -> None:
    (own_folder / "site.yaml").write_text("partition: gpu\n")
    (own_folder / "jean-zay.yaml").write_text("account: xyz@v100\n")
    assert profile_names() == ["generic-slurm", "jean-zay", "local", "site"]
    assert load_profile("site") == ClusterProfile(name="site", partition="gpu")
    assert load_profile("jean-zay") == ClusterProfile(name="jean-zay", account="xyz@v100")


@pytest.mark.parametrize("name", ["jean-zey", "../local", "", "local\n", "/etc/passwd"])
def test_a_name_that_is_not_there(name: str) -> None:
    with pytest.raises(
        SpecError, match=r"cluster profile: there is none called .*; there are: generic-slurm, jean-zay, local"
    ):
        load_profile(name)


def test_the_nearest_name_is_given() -> None:
    with pytest.raises(SpecError, match="write: jean-zay"):
        load_profile("jeanzay")


def test_everything_is_read() -> None:
    text = """\
launcher: slurm
partition: "gpu,gpu-long"
account: abc@v100
qos: qos_gpu-t3
constraint: "[rack1|rack2]"
gpus_per_node: 8
gpu_request: gpus-per-node
mem_per_node_gib: 0
cpus_per_task: 6
gpu_memory_gib: 79.6
setup:
  - module purge
  - source "$HOME/env/bin/activate" && echo ready
env: {OMP_NUM_THREADS: 4, TAG: "no", GREETING: "a 'b' $c"}
command_prefix: [apptainer, exec, --nv, image.sif]
python: /opt/py/bin/python
extra_sbatch: {mail-type: "END,FAIL", mail-user: a@b.org, exclusive: true, nice: 100}
intra_node_gb_s: 50
inter_node_gb_s: 12.5
runs: scratch/runs
interface: ib0
"""
    assert profile_of(text) == ClusterProfile(
        name="site",
        partition="gpu,gpu-long",
        account="abc@v100",
        qos="qos_gpu-t3",
        constraint="[rack1|rack2]",
        gpus_per_node=8,
        gpu_request="gpus-per-node",
        mem_per_node_gib=0.0,
        cpus_per_task=6,
        gpu_memory_gib=79.6,
        setup=("module purge", 'source "$HOME/env/bin/activate" && echo ready'),
        env={"OMP_NUM_THREADS": "4", "TAG": "no", "GREETING": "a 'b' $c"},
        command_prefix=("apptainer", "exec", "--nv", "image.sif"),
        python="/opt/py/bin/python",
        extra_sbatch={
            "mail-type": "END,FAIL",
            "mail-user": "a@b.org",
            "exclusive": "",
            "nice": "100",
        },
        intra_node_gb_s=50.0,
        inter_node_gb_s=12.5,
        runs="/sites/scratch/runs",
        interface="ib0",
    )


@pytest.mark.parametrize(
    ("text", "position", "found", "write"),
    [
        ("partion: gpu\n", "1:1", "partion is not a key of a cluster profile", "partition: gpu"),
        ("name: site\n", "1:7", "its name is that of its file", ""),
        ("mem_per_cpu_gib: 4\nmem_per_node_gib: 64\n", "2:19", "contradict each other", "one of them"),
        ("mem_per_cpu_gib: 0\n", "1:18", "must be above 0", ""),
        ("gpu_request: gpu\n", "1:14", "it takes one of: gres, gpus-per-node, none", ""),
        ("gpus_per_node: 0\n", "1:16", "at least 1", ""),
        ("partition: gpu --uid=0\n", "1:12", "one word that an #SBATCH line can hold", ""),
        ('account: "a\\n#SBATCH --uid=0"\n', "1:10", "U+000A", ""),
        ("constraint: $(id)\n", "1:13", "one word", ""),
        ("qos: no\n", "1:6", "'no' without quotes", ""),
        ("interface: ^eth0\n", "1:12", "exclusions (^eth0)", ""),
        ("interface: eth0,eth1\n", "1:12", "the name of one network interface", ""),
        ("extra_sbatch: {partition: x}\n", "1:16", "it comes from partition", ""),
        ("extra_sbatch: {mem: 4G}\n", "1:16", "it comes from mem_per_node_gib", ""),
        ("extra_sbatch: {time: 10}\n", "1:16", "it comes from resources.time_min of the spec", ""),
        ("extra_sbatch: {reservaton: x}\n", "1:16", "legal keys: bb, begin", "reservation: x"),
        ("extra_sbatch: {wrap: x}\n", "1:16", "extra_sbatch.wrap is not for extra_sbatch", ""),
        ("extra_sbatch: {exclusive: false}\n", "1:27", "without quotes", ""),
        ("extra_sbatch: {reservation: a b}\n", "1:29", "one word", ""),
        ('extra_sbatch: {wckey: "a\\nb"}\n', "1:23", "U+000A", ""),
        ("extra_sbatch: [x]\n", "1:15", "not a mapping", ""),
        ("env: {1A: x}\n", "1:7", "no name of a variable", ""),
        ("env: {A-B: x}\n", "1:7", "no name of a variable", ""),
        ("env: {RANK: 0}\n", "1:7", "set by the launcher", ""),
        ('env: {A: "x\\ny"}\n', "1:10", "U+000A", ""),
        ("env: {A: on}\n", "1:10", "'on' without quotes", '"on"'),
        ("env: {A: }\n", "1:9", "empty", ""),
        ("setup: |\n  module purge\n  module load x\n", "1:8", "U+000A", ""),
        ('setup: ["module load x\\tb"]\n', "1:9", "U+0009", ""),
        ("launcher: local\npartition: gpu\n", "2:12", "no meaning with launcher: local", ""),
        ("", "1:1", "a cluster profile is empty", ""),
        ("partition: a\npartition: b\n", "2:1", "written twice", ""),
    ],
)
def test_refused(text: str, position: str, found: str, write: str) -> None:
    with pytest.raises(SpecError) as caught:
        profile_of(text)
    problem = caught.value.problems[0]
    assert problem.where == f"site.yaml:{position}"
    assert found in problem.found
    assert write in problem.write


def test_all_problems_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        profile_of("partion: gpu\ngpus_per_node: 0\nenv: {RANK: 1}\nextra_sbatch: {mem: 1, wrap: x}\n")
    assert [p.where for p in caught.value.problems] == [
        f"site.yaml:{at}" for at in ("1:1", "2:16", "3:7", "4:16", "4:24")
    ]
