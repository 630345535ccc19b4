"""Experiment files of the numpex/benchopt distributed-imaging benchmarks -> an ordinary spec with a sweep."""
