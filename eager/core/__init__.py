"""In: ops called by anybody. Out: tensors, tape nodes, gradients."""
