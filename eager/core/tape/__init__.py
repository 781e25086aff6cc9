"""In: ops that ran. Out: nodes on the tape, and gradients by walking it; in-place writes and grad modes."""
