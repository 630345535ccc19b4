"""Tests of dptrain.records."""
