"""What test files share: comparing, stand-ins for devices, programs to try compilers on. Imported as `support`."""
