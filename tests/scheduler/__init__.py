"""Tests of dptrain/scheduler."""
