"""From outputs on all masked states to the sparsest AND-OR interactions, with a certificate.

In comes v, (..., 2**n); out go `Interactions` with a proven duality gap. What made v, what the
variables are and what the interactions are used for is never known here.
"""
