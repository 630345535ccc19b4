"""What to say about a key that a section does not have: where it belongs, or which one was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from dptrain.spec.sections import everything

_OTHER_WORDS = {
    "batch": "batch_size",
    "dtype": "precision",
    "epochs": "steps",
    "iters": "iterations",
    "lr": "learning_rate",
    "max_iter": "iterations",
    "model": "denoiser",
    "n_iter": "iterations",
    "network": "denoiser",
    "nf": "width",
    "overlap": "halo",
    "ranks": "gpus",
    "tile": "patch",
    "tiles": "tiling",
    "time": "time_min",
    "walltime": "time_min",
    "world_size": "gpus",
}


def nearest(word: str, valid: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The valid name that was probably meant."""
    by_lower = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def belongs(section: str, key: str, valid: Sequence[str]) -> tuple[str, str | None]:
    """(what else is known about the key, the key path to write instead).

    :param section: path of the section it was found in, empty at top level.
    """
    word = key.rsplit(".", 1)[-1]
    if "." in key:
        named = [f"{s}.{k}" if s else k for s, _, k in everything()]
        if key in named:
            return "; keys are nested, not joined by dots", key
    homes = [(s, label) for s, label, k in everything() if k == word and not (s == section and key in valid)]
    if homes:
        home, label = homes[0]
        here = [lb for s, lb in homes if s == section and lb]
        if here:
            return f"; it belongs to {' and '.join(dict.fromkeys(here))}", None
        return f"; it belongs in {home or 'the top level'}" + (
            f" ({label})" if label else ""
        ), f"{home}.{word}" if home else word
    meant = _OTHER_WORDS.get(word.lower())
    if meant in valid:
        return "", f"{section}.{meant}" if section else meant
    near = nearest(word, valid)
    if near is not None:
        return "", f"{section}.{near}" if section else near
    far = meant or nearest(word, [k for _, _, k in everything()], cutoff=0.75)
    if far is not None:
        home = next(s for s, _, k in everything() if k == far)
        return f"; perhaps {far} of {home or 'the top level'}", f"{home}.{far}" if home else far
    return "", None
