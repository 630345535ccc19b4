"""Hostile specs: each refused at the right place, with what was found and what to write, and without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import SpecError
from dptrain.spec.load import load_spec
from tests.spec.reading import problems_of

# id: (text, position, phrase of what was found, phrase of what to write)
HOSTILE: dict[str, tuple[str, str, str, str]] = {
    # keys
    "misspelt key": ("name: a\ntiling:\n  pach: 64\n", "3:3", "tiling.pach is not a key of tiling", "patch: 64"),
    "misspelt section": ("name: a\ntilling: {patch: 64}\n", "2:1", "tilling is not a key", "tiling: ..."),
    "misplaced key": ("name: a\nhalo: 8\n", "2:1", "it belongs in tiling", "halo: 8 (under tiling)"),
    "key of another kind": (
        "name: a\nproblem:\n  physics: {name: deblur, frames: 4}\n",
        "3:27",
        "problem.physics.frames is not a key of problem.physics (deblur); it belongs to multiframe_superres",
        "",
    ),
    "key by another word": (
        "name: a\ntrain: {lr: 1e-4}\n",
        "2:9",
        "train.lr is not a key of train",
        "learning_rate: 1e-4",
    ),
    "dotted key": ("name: a\ntiling.patch: 64\n", "2:1", "keys are nested", "patch: 64 (under tiling)"),
    "key written twice": (
        "name: a\ntiling:\n  patch: 64\n  halo: 8\n  patch: 32\n",
        "5:3",
        "'patch' is written twice here; the first is at line 3",
        "one",
    ),
    "section written twice": (
        "name: a\nrun: {seed: 1}\nrun: {seed: 2}\n",
        "3:1",
        "'run' is written twice here; the first is at line 2",
        "",
    ),
    "deep key written twice": (
        "name: a\nproblem: {physics: {name: deblur, name: denoise}}\n",
        "2:35",
        "'name' is written twice",
        "",
    ),
    "key with a line end": ('name: a\n"x\\ny": 3\n', "2:1", "'x\\x0ay' is not a key", ""),
    "key without letters": ("name: a\n'': 3\n", "2:1", "'' is not a key", ""),
    "value with a line end": ("name: a\nrum: |\n  x\n", "2:1", "rum is not a key", "\\x0a"),
    "word for a section": (
        "name: a\nalgorithm: pgd\n",
        "2:12",
        "algorithm is pgd, not a mapping",
        "algorithm: {name: pgd}",
    ),
    "word for the data": ("name: a\nproblem: {data: photo}\n", "2:17", "not a mapping", "data: {source: photo}"),
    "no name": ("tiling: {patch: 64}\n", "1:1", "name is missing", "name: ..."),
    "denoiser key of another network": (
        "name: a\ndenoiser: {name: dncnn, weights: random, nb: 2}\n",
        "2:42",
        "denoiser.nb is not a key",
        "",
    ),
    "identity takes nothing": (
        "name: a\ndenoiser: {name: identity, weights: random}\n",
        "2:28",
        "valid keys: name",
        "",
    ),
    # numbers
    "octal": ("name: a\ntiling: {halo: 0123}\n", "2:16", "leading zeros", "halo: 123"),
    "octal, new form": ("name: a\ntiling: {halo: 0o17}\n", "2:16", "not in decimal digits", "halo: 15"),
    "hexadecimal": ("name: a\ntiling: {halo: 0x10}\n", "2:16", "not in decimal digits", "halo: 16"),
    "underscores": ("name: a\ntrain: {steps: 1_000}\n", "2:16", "underscores", "steps: 1000"),
    "base 60": ("name: a\ntrain: {steps: 1:30}\n", "2:16", "colons (base 60", ""),
    "fraction for a count": ("name: a\nresources: {gpus: 2.5}\n", "2:19", "'2.5', not a whole number", ""),
    "float for a count": (
        "name: a\ntiling: {patch: 512.0}\n",
        "2:17",
        "not a whole number in plain digits",
        "patch: 512",
    ),
    "truth value for a count": ("name: a\nresources: {gpus: true}\n", "2:19", "'true', not a whole number", ""),
    "infinity": ("name: a\nalgorithm: {sigma: .inf}\n", "2:20", "not a finite number", ""),
    "not a number": ("name: a\ntrain: {learning_rate: .nan}\n", "2:24", "not a finite number", ""),
    "too large a float": ("name: a\ntrain: {learning_rate: 1e999}\n", "2:24", "too large", ""),
    "too long an int": (f"name: a\nrun: {{seed: {'9' * 5000}}}\n", "2:13", "too large", ""),
    "decimal comma": ("name: a\nalgorithm: {sigma: '0,05'}\n", "2:20", "comma", "sigma: 0.05"),
    "wide digits": ("name: a\nresources: {gpus: ４}\n", "2:19", "not a whole number", ""),
    "list for a number": ("name: a\nresources: {gpus: [1, 2]}\n", "2:19", "[1, 2], a list", ""),
    "word for a number": (
        "name: a\nalgorithm: {step_size: automatic}\n",
        "2:24",
        "a number, or auto",
        "step_size: auto",
    ),
    # truth values, nothing, texts
    "yes for true": ("name: a\nresources: {compile: yes}\n", "2:22", "not true or false", "compile: true"),
    "quoted truth value": ("name: a\nresources: {compile: 'false'}\n", "2:22", "not true or false", "compile: false"),
    "name that YAML reads as false": ("name: no\n", "1:7", "'no' without quotes", '"no" for the text'),
    "null where none is a word": ("name: a\ntiling: {patch: null}\n", "2:17", "tiling.patch is null", ""),
    "empty section": (
        "name: a\ntrain:\nrun: {seed: 1}\n",
        "2:7",
        "train is left empty",
        "{} for its defaults, or null for none",
    ),
    "empty value": ("name: a\nrun:\n  seed:\n", "3:8", "run.seed is left empty", ""),
    "scalar for a section": ("name: a\ntiling: 64\n", "2:9", "tiling is 64, not a mapping", ""),
    "list for a section": ("name: a\ntiling: [64]\n", "2:9", "tiling is [64], not a mapping", ""),
    "name with a space": ("name: my run\n", "1:7", "'my run'; it takes letters", "name: my-run"),
    "name that climbs": ("name: ../../etc\n", "1:7", "it takes letters", "name: etc"),
    "name for a shell": ('name: "a; rm -rf /"\n', "1:7", "it takes letters", ""),
    "name with a header line": ('name: "a\\n#SBATCH --uid=0"\n', "1:7", "U+000A", ""),
    "path with an escape code": ('name: a\ndenoiser: {weights: "x/\\e[2J.pth"}\n', "2:21", "U+001B", ""),
    "text that runs backwards": ("name: a\ncluster: x\u202ey\n", "2:11", "U+202E", ""),
    "control character in the file": ("name: a\n# \x07\n", "2:3", "U+0007", ""),
    # wall time
    "two-field time": (
        "name: a\nresources: {time_min: 10:30}\n",
        "2:23",
        "hours:minutes or minutes:seconds?",
        "10:30:00 or 00:10:30",
    ),
    "days and hours": ("name: a\nresources: {time_min: 1-12}\n", "2:23", "two fields", "time_min: 1-12:00:00"),
    "time that runs over": ("name: a\nresources: {time_min: 1-25:00:00}\n", "2:23", "run over", ""),
    "time with a unit": ("name: a\nresources: {time_min: 2h}\n", "2:23", "without a unit", "time_min: 120"),
    "no time at all": ("name: a\nresources: {time_min: 0}\n", "2:23", "at least 1", ""),
    # YAML
    "merge key": ("name: a\nrun: &r {seed: 1}\ntrain:\n  <<: *r\n", "2:6", "&r is a YAML anchor", ""),
    "alias": ("name: a\nproblem:\n  data: {truth: *scans}\n", "3:17", "*scans is a YAML alias", '"*scans" for a text'),
    "unquoted glob": ("name: a\nproblem:\n  data:\n    truth: *.tif\n", "4:13", "this is not YAML", "in quotes"),
    "python tag": (
        'name: a\ncluster: !!python/object/apply:os.system ["true"]\n',
        "2:10",
        "the tag",
        "without its tag",
    ),
    "own tag": ("name: a\ncluster: !env HOME\n", "2:10", "the tag !env", ""),
    "two documents": ("name: a\n---\nname: b\n", "2:1", "a second document", ""),
    "tab as indentation": ("name: a\nrun:\n\tseed: 1\n", "3:1", "this is not YAML", "spaces instead of the tab"),
    "unclosed bracket": ("name: a\nproblem: {image_size: [64, 64}\n", "2:30", "this is not YAML", "bracket"),
    "two colons": ("name: a: b\n", "1:8", "this is not YAML", "one `key: value` per line"),
    "braces as key": ("name: {{ name }}\n", "1:8", "cannot be a key", ""),
    "empty file": ("", "1:1", "a spec is empty", "name: my-run"),
    "comments only": ("# nothing\n", "1:1", "a spec is empty", ""),
    "top level is a list": ("- name: a\n", "1:1", "not `key: value` lines", ""),
    "top level is a text": ("hello\n", "1:1", "not `key: value` lines", ""),
    "nested without end": ("a: " + "[" * 3000, "1:19", "nested deeper than 16", ""),
    "escape beyond Unicode": ('name: "\\U00110000"\n', "1:8", "names no character", ""),
    # values that cannot be
    "unknown word": ("name: a\nalgorithm: {name: pdg}\n", "2:19", "it takes one of: pgd, fista", "name: pgd"),
    "unknown physics": (
        "name: a\nproblem: {physics: {name: debluring}}\n",
        "2:27",
        "problem.physics.name is 'debluring'",
        "name: deblur",
    ),
    "physics without a name": (
        "name: a\nproblem: {physics: {noise_std: 0.1}}\n",
        "2:20",
        "does not say which kind",
        "name: multiframe_superres | deblur",
    ),
    "data without a kind": (
        "name: a\nproblem: {data: {crop: center}}\n",
        "2:17",
        "does not say which kind",
        "source: photo | synthetic",
    ),
    "one axis": ("name: a\nproblem: {image_size: [64]}\n", "2:23", "1 items; it takes [H, W] or [D, H, W]", ""),
    "bare size": ("name: a\nproblem: {image_size: 64}\n", "2:23", "it takes [H, W]", ""),
    "no channels": ("name: a\nproblem: {channels: 0}\n", "2:21", "must be at least 1", ""),
    "keeps too much": (
        "name: a\nproblem: {physics: {name: inpaint, keep: 1.5}}\n",
        "2:42",
        "must be above 0 and at most 1",
        "",
    ),
    "negative noise": (
        "name: a\nproblem: {physics: {name: denoise, noise_std: -0.1}}\n",
        "2:47",
        "must be at least 0",
        "",
    ),
    "noise highest first": (
        "name: a\nproblem: {physics: {name: denoise, noise_std: [0.2, 0.1]}}\n",
        "2:47",
        "highest first",
        "[0.1, 0.2]",
    ),
    "factor does not divide": (
        "name: a\nproblem:\n  image_size: [65, 64]\n  physics: {name: multiframe_superres, factor: 4}\n",
        "4:48",
        "does not divide every axis of image_size [65, 64]",
        "image_size: [64, 64]",
    ),
    "anisotropic in 3-D": (
        "name: a\nproblem:\n  image_size: [32, 32, 32]\n  physics: {name: deblur, blur_sigma: [1, 2]}\n"
        "  data: {source: synthetic}\ndenoiser: {name: identity}\n",
        "4:39",
        "only a 2-D image",
        "blur_sigma: 1.0",
    ),
    "kernel larger than the image": (
        "name: a\nproblem: {image_size: [32, 32], physics: {name: deblur, blur_sigma: 9}}\n",
        "2:69",
        "the blur kernel of problem.physics has 63 pixels",
        "smaller blur_sigma",
    ),
    "photo in 3-D": (
        "name: a\nproblem: {image_size: [64, 64, 64], physics: {name: denoise}, data: {source: photo}}\n"
        "denoiser: {name: identity}\n",
        "2:78",
        "photo is 2-D",
        "",
    ),
    "superresolution in 3-D": (
        "name: a\nproblem: {image_size: [64, 64, 64], physics: {name: multiframe_superres}, data: {source: synthetic}}\n"
        "denoiser: {name: identity}\n",
        "2:53",
        "multiframe_superres is 2-D",
        "name: deblur",
    ),
    "photo with five channels": (
        "name: a\nproblem: {channels: 5, data: {source: photo}}\ndenoiser: {name: identity}\n",
        "2:39",
        "1 or 3 channels",
        "",
    ),
    "neither truth nor measurements": (
        "name: a\nproblem: {data: {truth: null}}\n",
        "2:25",
        "neither truth nor measurements",
        "",
    ),
    "empty range": ("name: a\nproblem: {data: {truth: x.png, range: [5, 5]}}\n", "2:39", "low must be below high", ""),
    "weights for 3-D": (
        "name: a\nproblem: {image_size: [64, 64, 64], physics: {name: denoise}, data: {source: synthetic}}\n",
        "2:23",
        "builtin (the default) is for 2-D",
        "weights: random",
    ),
    "weights for another network": ("name: a\ndenoiser: {name: unet}\n", "2:18", "does not exist for unet", "random"),
    "weights of another shape": (
        "name: a\ndenoiser: {name: drunet, weights: builtin, nb: 2}\n",
        "2:48",
        "a shape of their own",
        "",
    ),
    "three scales": ("name: a\ndenoiser: {weights: random, nc: [8, 8, 8]}\n", "2:33", "four whole numbers", ""),
    "halo larger than an axis": (
        "name: a\nproblem: {image_size: [16, 64]}\ntiling: {halo: 16}\n",
        "3:16",
        "not smaller than every axis",
        "",
    ),
    "whole image on two ranks": (
        "name: a\ntiling: {patch: none}\nresources: {gpus: 2}\n",
        "2:17",
        "whole image on one rank",
        "gpus: 1",
    ),
    "batch larger than the images": (
        "name: a\ntrain: {batch_size: 9, images: 8}\n",
        "2:21",
        "more than train.images 8",
        "batch_size: 8",
    ),
    "training without truth": (
        'name: a\nproblem: {data: {measurements: "*.npy", truth: null}}\ntrain: {}\n',
        "2:48",
        "training compares with the truth",
        "",
    ),
    "noise level of nothing": (
        "name: a\nproblem: {physics: {factory: 'm:f'}}\nalgorithm: {sigma: noise}\n",
        "3:20",
        "needs a noise_std",
        "",
    ),
    "trains what is not there": (
        "name: a\nalgorithm: {sigma: noise}\ntrain: {trainable: [denoiser, sigma]}\n",
        "3:20",
        "leaves no sigma to train",
        "[denoiser, step_size]",
    ),
    "trains something twice": ("name: a\ntrain: {trainable: [denoiser, denoiser]}\n", "2:20", "twice", ""),
    "trains nothing": ("name: a\ntrain: {trainable: []}\n", "2:20", "0 items", ""),
    "warns before the start": (
        "name: a\nresources: {time_min: 1}\nrun: {signal_lead_s: 90}\n",
        "3:22",
        "time limit of 60 s",
        "30",
    ),
    "factory without a function": ("name: a\ndenoiser: {factory: mymodule}\n", "2:21", "'module:function'", ""),
    "factory for a shell": ("name: a\ndenoiser: {factory: 'os:system(1)'}\n", "2:21", "'module:function'", ""),
    "argument that is no name": ("name: a\ndenoiser: {factory: 'm:f', a-b: 1}\n", "2:28", "cannot be an argument", ""),
    "argument that is ambiguous": (
        "name: a\ndenoiser: {factory: 'm:f', flag: off}\n",
        "2:34",
        "'off' without quotes",
        '"off" for the text',
    ),
    "replicas that leave ranks over": (
        "name: a\nresources: {gpus: 8, replicas: 3, layout: sharded}\n",
        "2:32",
        "resources.replicas 3 does not divide resources.gpus 8: 8 = 3 x 2 + 2",
        "replicas: 2, or gpus: 9",
    ),
    "more replicas than ranks": (
        "name: a\nresources: {gpus: 2, replicas: 4, layout: sharded}\n",
        "2:32",
        "2 = 4 x 0 + 2",
        "replicas: 2, or gpus: 4",
    ),
    "replicas in layout replicated": (
        "name: a\nresources: {gpus: 4, replicas: 2, layout: replicated}\n",
        "2:32",
        "layout replicated has all 4 ranks on one image",
        "replicas: 1, or layout: sharded",
    ),
    "replicas without a patch": (
        "name: a\ntiling: {patch: none}\nresources: {gpus: 4, replicas: 2, layout: sharded}\n",
        "2:17",
        "resources.gpus is 4 = 2 replicas x 2 ranks",
        "gpus: 2",
    ),
    "replicas with too few images": (
        "name: a\nresources: {gpus: 4, replicas: 4, layout: sharded}\ntrain: {batch_size: 2, images: 7}\n",
        "3:32",
        "resources.replicas 4 x train.batch_size 2 = 8 images per step, more than train.images 7",
        "images: 8",
    ),
    "halo larger than an axis, untiled": (
        "name: a\ntiling: {patch: none, halo: 512}\n",
        "2:29",
        "halo is 512, not smaller than every axis of the image [512, 512]",
        "halo: 16",
    ),
    # part of the format, not of this version
    "stages of a network without": (
        "name: a\ndenoiser: {name: dncnn, weights: pretrained}\ntiling: {checkpoint: stages}\n",
        "3:22",
        "not for dncnn",
        "checkpoint: always",
    ),
    "stages of no network": (
        "name: a\ntiling: {checkpoint: stages}\ndenoiser: {name: identity}\n",
        "2:22",
        "drunet and unet and your own code that declares its stages, not for identity",
        "checkpoint: always",
    ),
    "stages compiled": (
        "name: a\ntiling: {checkpoint: stages}\nresources: {compile: true}\n",
        "2:22",
        "does not go with resources.compile",
        "compile: false",
    ),
    # sweeps
    "sweep of an unknown key": (
        "name: a\nsweep:\n  resources.gpu: [1, 2]\n",
        "3:3",
        "sweep names 'resources.gpu'",
        "resources.gpus",
    ),
    "sweep of a section": ("name: a\nsweep: {tiling: [1, 2]}\n", "2:9", "a whole section", "tiling.patch"),
    "sweep of names": ("name: a\nsweep: {name: [b, c]}\n", "2:9", "name cannot be swept", ""),
    "sweep without values": ("name: a\nsweep: {tiling.patch: []}\n", "2:23", "a list of values", ""),
    "sweep with a wrong value": (
        "name: a\nsweep:\n  tiling.halo:\n    - 8\n    - x\n",
        "5:7",
        "tiling.halo is 'x'",
        "",
    ),
    "sweep of unequal lengths": (
        "name: a\nsweep:\n  tiling.patch, tiling.halo: [[64, 8], [32]]\n",
        "3:40",
        "its 2 keys take 2 values",
        "",
    ),
    "sweep of a key twice": (
        'name: a\nsweep: {tiling.halo: [8], "tiling.patch, tiling.halo": [[64, 16]]}\n',
        "2:27",
        "tiling.halo twice",
        "",
    ),
    "sweep of a value twice": ("name: a\nsweep: {algorithm.sigma: [0.1, 0.10]}\n", "2:32", "0.10 twice", ""),
    "sweep that clashes": (
        "name: a\ntiling: {patch: none}\nsweep: {resources.gpus: [1, 2]}\n",
        "2:17",
        "(in the run resources.gpus=2 of the sweep)",
        "",
    ),
    "sweep without end": (
        f"name: a\nsweep: {{algorithm.iterations: {list(range(1, 200))}, run.seed: {list(range(200))}}}\n",
        "2:8",
        "39800 runs",
        "",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused_with_position(case: str) -> None:
    text, position, found, write = HOSTILE[case]
    first = problems_of(text)[0]
    assert first.where == f"s.yaml:{position}"
    assert found in first.found
    assert write in first.write


@pytest.mark.parametrize("case", HOSTILE)
def test_message_is_safe_for_a_terminal(case: str) -> None:
    for problem in problems_of(HOSTILE[case][0]):
        assert str(problem).replace("\n", "").isprintable()
        assert len(str(problem)) < 600


def test_all_problems_of_a_file_at_once_and_by_line() -> None:
    text = (
        "name: my run\nproblem:\n  image_sise: [64, 64]\n  channels: 0\n  channels: 1\ntiling: {patch: 0123, halo: x}\n"
        "resources: {time_min: 10:30, replicas: 2}\nrun: &a {seed: -1}\nsweep: {tiling: [1]}\n"
    )
    lines = [int(p.where.split(":")[1]) for p in problems_of(text)]
    assert lines == [1, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9]


def test_a_misspelt_key_causes_no_second_complaint_about_its_default() -> None:
    found = problems_of("name: a\nproblem: {image_sise: [2048, 2048]}\ntiling: {halo: 600}\n")
    assert [p.where for p in found] == ["s.yaml:2:11"]


@pytest.mark.parametrize(
    ("data", "position", "found"),
    [
        (b"name: \xff\xfe", "1:7", "byte 0xff is not UTF-8"),
        ("name: ä".encode("latin-1"), "1:7", "byte 0xe4 is not UTF-8"),
        ("name: a\n".encode("utf-16"), "1:1", "is not UTF-8"),
        (b"name: a\x00b\n", "1:8", "U+0000"),
        (b"#" * (1 << 20) + b"#", "1:1", "too many"),
    ],
)
def test_bytes_that_are_no_spec(tmp_path: Path, data: bytes, position: str, found: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert caught.value.problems[0].where == f"{path}:{position}"
    assert found in caught.value.problems[0].found


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nrun:\r\n  seed: 7\r\n")
    assert load_spec(path).spec.run.seed == 7


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("name: a\n")
    with pytest.raises(SpecError, match=r"no such file\n    write: .*demo\.yaml"):
        load_spec(tmp_path / "dem.yaml")
    with pytest.raises(SpecError, match="not a file"):
        load_spec(tmp_path)


def test_a_bomb_of_aliases_is_not_expanded() -> None:
    lines = ["name: a", "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert sum("YAML anchor" in p.found for p in problems_of("\n".join(lines))) == 30
