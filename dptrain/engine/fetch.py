"""Downloads the weights a spec needs: the spec on stdin, the reason of a failure on stderr. Run by `dptrain prepare`."""

from __future__ import annotations

import sys
from pathlib import Path

from dptrain.engine.weights import fetch_pretrained
from dptrain.errors import DptrainError
from dptrain.spec.load import parse_spec


def main() -> None:
    """Fetch, or say in one message why not."""
    try:
        fetch_pretrained(parse_spec(sys.stdin.read(), "stdin", Path.cwd(), ()).spec)
    except DptrainError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
