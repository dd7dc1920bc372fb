"""From a model, samples and variables to v on all 2^n masked states, and to interactions.

In come any network and its inputs; out goes v (`masked_outputs`), or its split (`extract`). Where
the data and the network come from, and what is asked of the interactions, is never known here.

At which layer a network (a ViT, say) is masked, and by what: `mask_values`; how it is cut there:
`hooks`; which variables a sample has: `patches`, `spans` and `prompts`.
"""
