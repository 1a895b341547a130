"""Every operation: its gradient against finite differences, its kernels against NumPy. One file per family."""
