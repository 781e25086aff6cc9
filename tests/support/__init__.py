"""Shared by test files: comparing, stand-ins for devices, programs to try compilers on. Imported as `support`."""
