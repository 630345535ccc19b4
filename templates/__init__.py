"""Problem specs, cluster profiles and built-in weights that ship with dptrain (package data), and how to read the texts."""

from importlib.resources import files

__all__ = ["cluster_names", "read_cluster", "read_template", "template_names", "template_summary"]


def template_names() -> list[str]:
    """Names of the problem specs that `dptrain init` can start from."""
    return _names(".")


def read_template(name: str) -> str:
    """Text of a problem spec; its first line is `name: ...`. Raises FileNotFoundError for a name that is not there."""
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def template_summary(name: str) -> str:
    """What a template is for: the comment in its second line."""
    return read_template(name).splitlines()[1].lstrip("# ")


def cluster_names() -> list[str]:
    """Names of the cluster profiles that ship with dptrain."""
    return _names("clusters")


def read_cluster(name: str) -> str:
    """Text of a cluster profile that ships with dptrain. Raises FileNotFoundError for a name that is not there."""
    return files(__name__).joinpath("clusters", f"{name}.yaml").read_text(encoding="utf-8")


def _names(folder: str) -> list[str]:
    return sorted(
        p.name.removesuffix(".yaml") for p in files(__name__).joinpath(folder).iterdir() if p.name.endswith(".yaml")
    )
