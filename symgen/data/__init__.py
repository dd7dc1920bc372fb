"""From the name of a data set to samples: read, checked, divided into parts.

In come names, hub ids or folders; out go `Data` with disjoint parts, texts and tokenizers. Which
network learns from them, and that anything will be masked, is never known here.
"""
