"""User code named by a spec: imports `module:function` and calls it; every failure names the function and the spec key."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dptrain.errors import UsageError
from dptrain.spec.schema import Factory


def load_function(factory: Factory, where: str) -> Callable[..., Any]:
    """Import the function, with the spec file's folder first on `sys.path`.

    :param where: the spec key, for messages.
    """
    module_name, _, function_name = factory.factory.partition(":")
    if not module_name or not function_name:
        raise UsageError(f'{where}.factory: {factory.factory!r}\n    write: "module:function"')
    if factory.search_path and factory.search_path not in sys.path:
        sys.path.insert(0, factory.search_path)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the user's module itself imports something absent: its traceback says where
        raise UsageError(
            f"{where}.factory: no module {module_name!r} (looked in {factory.search_path or 'the current folder'} first, "
            f"then where Python {Path(sys.executable)} looks)"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        names = sorted(
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name
        )
        raise UsageError(
            f"{where}.factory: {module_name!r} ({module.__file__}) has no function {function_name!r}; it has: "
            + (", ".join(names) or "none")
        )
    found: Callable[..., Any] = function
    return found


def call_factory(factory: Factory, where: str, standard: Mapping[str, Any]) -> Any:
    """Call the user's function with the user's arguments and with those of `standard` that it takes.

    :param standard: what dptrain offers (`image_size`, `channels`, ...); a function that takes `**kwargs` gets all.
    """
    function = load_function(factory, where)
    offered = {**standard, **factory.arguments}
    clash = sorted(set(standard) & set(factory.arguments))
    if clash:
        raise UsageError(f"{where}.{clash[0]}: dptrain itself passes {clash[0]!r} to {factory.factory}; remove the key")
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        unknown = sorted(set(factory.arguments) - set(parameters))
        if unknown:
            raise UsageError(
                f"{where}.{unknown[0]}: {factory.factory} takes no argument {unknown[0]!r}; it takes: {', '.join(parameters)}"
            )
        offered = {k: v for k, v in offered.items() if k in parameters}
    missing = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and n not in offered and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing:
        raise UsageError(
            f"{where}: {factory.factory} needs the argument {missing[0]!r}\n    write: {missing[0]}: ... beside `factory:` "
            f"(dptrain itself passes {', '.join(standard)})"
        )
    return function(**offered)
