"""From recorded graphs to fused kernels. Not built yet."""
