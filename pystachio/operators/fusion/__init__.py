"""Chains of streaming operators as one program over vectors of rows (`kernels.program`), where that is possible."""
