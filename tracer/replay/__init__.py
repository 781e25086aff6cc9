"""Replay. In: a trace and op calls. Out: a matched segment, run; or a bailout to eager execution."""
