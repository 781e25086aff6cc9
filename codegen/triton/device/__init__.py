"""Compiles a kernel's text for a device; also device limits, and an interpreter for tests."""
