"""What `report` prints: the table of results, two runs side by side, the seams of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.cli.output import note, print_json, print_table, say
from dptrain.errors import NoSuchRun, UsageError
from dptrain.records.index import find_runs, resolve_run
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import is_sweep
from dptrain.status.show import number
from dptrain.status.sweeps import resolve_runs, strangers

if TYPE_CHECKING:
    from dptrain.report.compare import Comparison, Speed
    from dptrain.report.runs import Row, Run
    from dptrain.report.seams import AxisScore, ImageSeams, Seams

EXPENDABLE = ("LAYOUT", "PEAK", "LOSS", "TASK", "S/STEP", "SSIM")
MANY = 50
"""Runs whose reading takes seconds, so that it is said."""
MOST_WIDE = 48
"""Characters of a value in a table of differences."""


def chosen(texts: Sequence[str]) -> tuple[list[RunPaths], list[str]]:
    """Every run that is named, once; also all of a folder of runs. And what is to be known of the sweeps among them.

    :raises NoSuchRun: where a text is neither a run, nor a sweep, nor such a folder.
    """
    found: list[RunPaths] = []
    remarks: list[str] = []
    for text in texts:
        try:
            runs = resolve_runs(text)
            if is_sweep(text) and (remark := strangers(text, runs)) is not None:
                remarks.append(remark)
            found += runs
        except NoSuchRun:
            inside = find_runs(Path(text).expanduser().absolute()) if text else []
            if not inside:
                raise
            found += inside
    return list(dict.fromkeys(found)), remarks


def read(paths: Sequence[RunPaths]) -> list[Run]:
    """The runs with their records."""
    from dptrain.report.runs import load_runs
    from dptrain.status.state import run_status

    return load_runs(paths, run_status(paths))


def check_options(compare: bool, seams: bool, untiled: str | None, files: Mapping[str, str]) -> None:
    """:raises UsageError: for options that do not go together."""
    if compare and seams:
        raise UsageError("--compare and --seams are two reports\n    write: one of them")
    if untiled is not None and not seams:
        raise UsageError("--untiled goes with --seams\n    write: dptrain report --seams RUN --untiled OTHER")
    if (compare or seams) and files:
        one = "--compare" if compare else "--seams"
        raise UsageError(
            f"{one} writes no file, so {next(iter(files))} does not go with it\n    write: {one} with --json"
        )
    for option, file in files.items():
        if file == "-" and option != "--csv":
            raise UsageError(
                f"{option} is written to a file; only --csv is printed\n    write: {option} FILE, or --csv -"
            )


def report(
    paths: Sequence[RunPaths],
    remarks: Sequence[str],
    *,
    csv: Path | None,
    parquet: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """The rows of the runs where they are asked for: printed, or in files.

    :param remarks: what is to be known of them.
    """
    from dptrain.report.measured import remember
    from dptrain.report.rows import row_of
    from dptrain.report.tables import to_csv, write_csv, write_parquet
    from dptrain.report.together import warning

    if len(paths) >= MANY:
        note(f"reading {len(paths)} runs")
    runs = read(paths)
    for text in remember([run.paths for run in runs], [run.status for run in runs]):
        note(text)
    rows = [row_of(run) for run in runs]
    shared = warning(runs)
    to_stdout = csv is not None and str(csv) == "-"
    # What is printed to stdout stays alone there.
    tell = note if to_stdout or as_json else say
    if csv is not None and not to_stdout:
        write_csv(csv, rows)
        tell(f"{len(rows)} rows: {csv}")
    if parquet is not None:
        write_parquet(parquet, rows)
        tell(f"{len(rows)} rows: {parquet}")
    if html is not None:
        tell(_write_page(runs, html, remarks))
    if to_stdout:
        say(to_csv(rows).rstrip("\n"))
    elif as_json:
        print_json(rows)
    elif csv is None and parquet is None and html is None:
        print_rows(rows)
    for remark in (*remarks, *([shared] if shared is not None else [])):
        tell(remark)


def _write_page(runs: Sequence[Run], path: Path, remarks: Sequence[str]) -> str:
    from dptrain.report.page import html
    from dptrain.report.tables import write_whole

    content = html(runs, remarks).encode("utf-8")
    write_whole(path, content, "the page")
    return f"{len(runs)} runs, {len(content) / 1e6:.2f} MB: {path}"


def print_rows(rows: Sequence[Row]) -> None:
    """The short table of results."""
    from dptrain.report.rows import TABLE_HEADER, table_row

    print_table(TABLE_HEADER, [table_row(row) for row in rows], (), EXPENDABLE)


def compare(paths: Sequence[RunPaths], as_json: bool) -> None:
    """`report --compare A B`."""
    from dptrain.report.compare import compare as compared

    if len(paths) != 2:
        raise UsageError(f"--compare takes two runs, not {len(paths)}\n    write: dptrain report --compare A B")
    found = compared(*read(paths))
    if as_json:
        print_json(found.to_json())
    else:
        _print_comparison(found)


def _print_comparison(found: Comparison) -> None:
    say(f"A: {found.a}\nB: {found.b}")
    say(f"\nresult: {found.result}")
    if found.differences:
        rows = [
            (d.what, d.verdict, number(d.largest, ".3g"), number(d.rms, ".3g"), number(d.relative, ".3g"), d.note)
            for d in found.differences
        ]
        print_table(("WHAT", "VERDICT", "LARGEST", "RMS", "RELATIVE", "NOTE"), rows)
    for text in found.absent:
        say(f"not compared: {text}")
    say("\nspeed: " + ("not known: one of them has recorded no step" if found.speed is None else _speed(found.speed)))
    for title, entries in (("spec", found.spec), ("environment", found.environment)):
        count = f"{len(entries)} difference{'s' * (len(entries) > 1)}"
        say(f"\n{title}: {count if entries else 'equal'}")
        if entries:
            print_table(("KEY", "A", "B"), [(key, _value(a), _value(b)) for key, a, b in entries])


def _speed(speed: Speed) -> str:
    ratio = speed.ratio
    return (
        f"B takes {ratio.value:.3g} times as long a step ({ratio.low:.3g} to {ratio.high:.3g}): {speed.verdict}\n"
        f"  A {_times(speed.a_s, speed.a_quartiles_s, speed.a_steps)}\n"
        f"  B {_times(speed.b_s, speed.b_quartiles_s, speed.b_steps)}"
    )


def _times(median_s: float, quartiles_s: tuple[float, float], steps: int) -> str:
    return f"{median_s:.4g} s (quartiles {quartiles_s[0]:.4g} to {quartiles_s[1]:.4g}, {steps} steps)"


def _value(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= MOST_WIDE else f"{text[: MOST_WIDE - 3]}..."


def seams(paths: Sequence[RunPaths], untiled: str | None, as_json: bool) -> None:
    """`report --seams RUN [--untiled OTHER]`."""
    from dataclasses import replace

    from dptrain.report.seams import find_untiled, grid_of, seams_of
    from dptrain.report.untiled import advice

    if len(paths) != 1:
        raise UsageError(f"--seams takes one run, not {len(paths)}\n    write: dptrain report --seams RUN")
    (run,) = read(paths)
    grid_of(run)
    given = [] if untiled is None else read([resolve_run(untiled)])
    other = given[0] if given else find_untiled(run, read(find_runs(run.paths.dir.parent)))
    found = seams_of(run, other)
    if other is None:
        found = replace(found, advice=advice(run))
    if as_json:
        print_json(found.to_json())
    else:
        _print_seams(found)


def _print_seams(found: Seams) -> None:
    grid = found.grid
    counts = " x ".join(map(str, grid.counts))
    say(f"{found.run}: {counts} tiles of {grid.patch} pixels, halo {grid.halo}")
    rows = [row for image in found.images for row in _image_rows(image)]
    print_table(("IMAGE", "OF", "AXIS", "BORDERS", "AT BORDERS", "INSIDE", "SCORE", "SIGMA", "SEAM"), rows)
    say(
        "score: mean jump at tile borders / inside, 1 without seams; sigma: deviations above the same grid in other places"
    )
    for image in found.images:
        if image.untiled is not None:
            u = image.untiled
            say(
                f"{image.name} - untiled ({u.run}): largest {u.largest:.3g}, rms {u.rms:.3g}; "
                f"within the halo of a border {number(u.rms_at_borders, '.3g')}, elsewhere {number(u.rms_inside, '.3g')}"
            )
    if found.advice is not None:
        say(found.advice)


def _image_rows(image: ImageSeams) -> list[tuple[str, ...]]:
    rows = [_axis_row(image.name, "image", axis) for axis in image.axes]
    if image.untiled is not None:
        rows += [_axis_row(image.name, "difference", axis) for axis in image.untiled.axes]
    return rows


def _axis_row(name: str, of: str, axis: AxisScore) -> tuple[str, ...]:
    seam = {True: "yes", False: "no", None: "-"}[axis.seam]
    means = (number(axis.at_borders, ".3g"), number(axis.inside, ".3g"), number(axis.score, ".3f"))
    return (name, of, str(axis.axis), str(axis.borders), *means, number(axis.sigma, ".1f"), seam)
