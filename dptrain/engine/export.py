"""From a training run to one weights file of its denoiser alone, in half precision, with where it came from as metadata.

    python -m dptrain.engine.export RUN FILE.safetensors

This is how the built-in weights were made (docs/denoiser.md). The spec takes such a file as `denoiser.weights`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from dptrain.engine.weights import architecture_of, newest_model, read_state_dict
from dptrain.errors import DptrainError, UsageError
from dptrain.records.index import resolve_run
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Denoiser


def export(run: str, target: Path) -> dict[str, str]:
    """Write the denoiser of a run's newest save to `target`; returns the metadata written into it."""
    paths = resolve_run(run)
    spec = load_spec(paths.spec).spec
    if not isinstance(spec.denoiser, Denoiser):
        raise UsageError(f"run {paths.run_id} trained a denoiser of user code: take {newest_model(paths)} itself")
    source = newest_model(paths)
    tensors = read_state_dict(source)
    found = architecture_of(spec.denoiser.name, tensors, source)
    assert spec.train is not None
    metadata = {
        "spec": spec.name,
        "step": source.parent.name.removeprefix("step-"),
        "seed": str(spec.run.seed),
        "channels": str(found.channels),
        "network": spec.denoiser.name,
    }
    metadata |= {key: str(value) for key in ("nc", "nb", "depth", "width", "scales") if (value := getattr(found, key))}
    save_file(
        {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}, target, metadata=metadata
    )
    target.chmod(0o644)  # safetensors makes files that only their owner can read
    return metadata


def main() -> int:
    """Command line: RUN FILE."""
    if len(sys.argv) != 3:
        print((__doc__ or "").strip(), file=sys.stderr)
        return UsageError.exit_code
    try:
        metadata = export(sys.argv[1], Path(sys.argv[2]))
    except DptrainError as error:
        print(f"dptrain: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{sys.argv[2]}: {Path(sys.argv[2]).stat().st_size} bytes, {metadata}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
