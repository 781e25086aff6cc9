"""`@compile`: record, replay, fall back. Not built yet."""
