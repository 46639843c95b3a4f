"""From a schedule and its kernels to something that can be called."""
