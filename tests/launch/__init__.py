"""Tests of dptrain/launch."""
