"""The command line: parse, call one function, print; one file per group of commands."""

if __name__ != "dptrain.cli":
    raise ImportError(
        f"this package is dptrain.cli, not {__name__}: it is imported from the wrong folder. "
        "Write `import dptrain.cli`, after `make setup` or `pip install dptrain`."
    )
