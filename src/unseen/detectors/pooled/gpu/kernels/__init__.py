"""The formulas of the recommended detector as Triton kernels, fused so that an update is some twenty launches."""
