"""From interactions to numbers and verdicts: the paper's method and how its claims are judged.

In come interactions of a target and of its baseline networks (a `Study` makes both); out go
transfer, dynamics, removal, conditions, intervals and judged claims. How anything is drawn, and in
which chapter it stands, is never known here.
"""
