"""The report as one HTML file that opens anywhere: no request leaves it, its own Content-Security-Policy forbids them.

jinja2 fills the page with escaping on: names, keys and values of a spec are other people's words. Only the SVG texts and the page's
own style and script are put in as they are; the policy lets no script run but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from dptrain import __version__
from dptrain.report import communication, cost, forecasts, quality, scaling
from dptrain.report.figure import Figure, Missing
from dptrain.report.images import gallery
from dptrain.report.listing import listing, shown
from dptrain.report.rows import PACKAGES
from dptrain.report.runs import Run, reason_of
from dptrain.status.model import first_word

FIGURES: tuple[Callable[[Sequence[Run]], Figure | Missing], ...] = (
    quality.psnr_figure,
    quality.loss_figure,
    quality.difference_figure,
    cost.breakdown_figure,
    scaling.strong_figure,
    scaling.work_figure,
    scaling.weak_figure,
    cost.memory_figure,
    cost.checkpoint_figure,
    cost.batch_figure,
    communication.split_figure,
    communication.pop_figure,
    forecasts.forecast_figure,
    forecasts.misfits_figure,
)


def figures(runs: Sequence[Run]) -> tuple[list[Figure], list[Missing]]:
    """Every figure that the runs hold the data for, and the others with what they would need."""
    made = [figure(runs) for figure in FIGURES]
    return [f for f in made if isinstance(f, Figure)], [f for f in made if isinstance(f, Missing)]


def html(runs: Sequence[Run], remarks: Sequence[str] = ()) -> str:
    """The page of these runs.

    :param remarks: what is to be known of them.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    folder = files("dptrain.report")
    style, script = (folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = lambda value: shown("", value)
    environment.filters["coded"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    made, missing = figures(runs)
    text = template.render(
        title=_title(runs),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        style=Markup(style),
        script=Markup(script),
        markup=Markup,
        made=time.strftime("%Y-%m-%d %H:%M"),
        version=__version__,
        facts=_facts(runs),
        unlike=_unlike(runs),
        remarks=remarks,
        listing=listing(runs),
        unfinished=[(run.name, run.status.state, reason_of(run) or "") for run in runs if not run.completed],
        figures=made,
        missing=missing,
        gallery=gallery(runs),
    )
    # Names of files need not be Unicode.
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    return names[0] if len(names) == 1 else f"{len(names)} runs"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the reader wants to know first."""
    states = Counter(first_word(run.status.state) for run in runs)
    sizes = sorted({run.image_size for run in runs if run.image_size})
    psnr = [values[-1] for run in runs if run.completed and (values := run.numbers("psnr_db"))]
    facts = [
        ("runs", ", ".join(f"{count} {state}" for state, count in states.most_common())),
        ("ranks", ", ".join(map(str, sorted({run.ranks for run in runs})))),
        ("images", ", ".join(" x ".join(map(str, size)) for size in sizes[:6]) + (", ..." if len(sizes) > 6 else "")),
        ("layouts", ", ".join(sorted({str(run.spec.get("resources.layout", "?")) for run in runs}))),
        ("PSNR", f"{min(psnr):.2f} to {max(psnr):.2f} dB at the end" if psnr else ""),
        ("made", _days([run.status.created_s for run in runs])),
    ]
    return [(name, text) for name, text in facts if text]


def _days(times: Sequence[float]) -> str:
    days = [time.strftime("%Y-%m-%d", time.localtime(t)) for t in (min(times, default=0), max(times, default=0)) if t]
    return " to ".join(dict.fromkeys(days))


def _unlike(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What of software and machines differs between runs, since their times then do not compare."""
    every = [_made_with(run) for run in runs]
    found = []
    for name in dict.fromkeys(name for made in every for name in made):
        counts = Counter(str(made[name]) for made in every if made.get(name))
        if len(counts) > 1:
            found.append((name, ", ".join(f"{value} ({count} runs)" for value, count in counts.most_common(5))))
    return found


def _made_with(run: Run) -> dict[str, Any]:
    versions, git = (run.environment.get(key) for key in ("versions", "git"))
    versions, git = (value if isinstance(value, dict) else {} for value in (versions, git))
    return {
        **{name: versions.get(name) for name in PACKAGES},
        "python": run.environment.get("python"),
        "git": str(git.get("sha") or "")[:12],
        "host": run.start.get("host"),
        "device": run.start.get("device"),
    }
