"""A tree as the YAML that a person would write: sections indented, lists of rows one row a line, remarks as comments."""

from __future__ import annotations

from collections.abc import Sequence

from dptrain.spec.benchopt.remarks import Remark
from dptrain.spec.benchopt.values import flow_text, key_text
from dptrain.spec.tree import Items, Table


def yaml_text(root: Table, title: str, remarks: Sequence[Remark]) -> str:
    """The file, with what could not be mapped at its top."""
    head = [f"# {title}", *(f"# {remark}" for remark in remarks)]
    return "\n".join([*head, *_lines(root, 0)]) + "\n"


def _lines(table: Table, indent: int) -> list[str]:
    lines = []
    for key, entry in table.entries.items():
        head, value = " " * indent + key_text(key) + ":", entry.value
        if isinstance(value, Table) and value.entries:
            lines += [head, *_lines(value, indent + 2)]
        elif isinstance(value, Items) and len(value.items) > 1 and isinstance(value.items[0], Items):
            lines += [head, *(" " * (indent + 2) + "- " + flow_text(item) for item in value.items)]
        else:
            lines.append(f"{head} {flow_text(value)}")
    return lines
