"""From the name of a data set to samples: read, checked, divided into parts.

In come names, hub ids or folders; out go `Data` with disjoint parts, texts and tokenizers that have
a token for what is masked; interactions go to a folder or a hub and come back (`sharing`). Which
network learns from them, and what is measured of it, is never known here.
"""
