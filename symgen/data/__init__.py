"""From the name of a data set to samples: read, checked, divided into disjoint parts.

Names, hub ids or folders come in. `Data` with parts, texts and tokenizers come out. This room knows
nothing of networks and measurements.
"""
