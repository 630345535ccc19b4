"""dptrain: one YAML spec becomes a multi-rank reconstruction or training job, planned, launched and watched."""

__version__ = "0.1.0"
