"""Each operation as numba kernel and as torch reference."""
