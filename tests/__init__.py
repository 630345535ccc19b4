"""Tests, in the same tree as the package; nothing outside the repository is read."""
