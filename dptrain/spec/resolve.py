"""One tree -> one spec: read, defaults that follow from other values, checks of values against each other."""

from __future__ import annotations

from dataclasses import replace

from dptrain.spec.build import Builder
from dptrain.spec.checks import check_spec, default_signal_lead_s, default_trainable
from dptrain.spec.schema import Spec
from dptrain.spec.tree import Table


def build_spec(root: Table) -> tuple[Builder, Spec]:
    """The spec of a tree without its sweep, and the builder that knows what is wrong with it."""
    builder = Builder(special={("sweep",): lambda *_: {}})
    spec = builder.section(Spec, root, ())
    spec = with_derived_defaults(spec, builder)
    check_spec(spec, builder)
    return builder, spec


def with_derived_defaults(spec: Spec, builder: Builder) -> Spec:
    """Defaults that depend on other values, where the file does not say."""
    if spec.train is not None and ("train", "trainable") not in builder.at:
        spec = replace(spec, train=replace(spec.train, trainable=default_trainable(spec)))
    if ("run", "signal_lead_s") not in builder.at:
        spec = replace(spec, run=replace(spec.run, signal_lead_s=default_signal_lead_s(spec)))
    return spec
