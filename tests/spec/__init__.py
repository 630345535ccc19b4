"""Tests of dptrain.spec."""
