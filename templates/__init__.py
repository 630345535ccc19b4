"""Problem specs, cluster profiles and built-in weights that ship with dptrain (package data, no code)."""
