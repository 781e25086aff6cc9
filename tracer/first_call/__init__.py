"""First calls. In: op calls that are not run. Out: a trace, and a replayer that takes over the call."""
