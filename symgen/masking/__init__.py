"""From a model, samples and variables to v on all 2^n masked states, and to interactions.

The way of an image through this room:

1. `variables` (of texts: with `words`) and `mask_values` say what is masked, and by what.
2. `outputs.masked_outputs` calls `outputs.prepare`, which returns a `states.Prepared`: the network
   with its masked layer (`hooks.Network`), the inputs, and the variable that owns each position.
   `images`, `texts` and `functions` prepare their inputs in the same way.
3. `checks.check` runs a few states and refuses networks whose v would be wrong.
4. `states.run_all` runs some samples up to the masked layer (`states.Masked`), then the network
   above it on their masked states (`states.outputs`), and reads v from the logits.

Language models end with other functions of the form of `states.outputs`: `prefix_tree.tree_outputs`
and `causal.removed_outputs`. `prompts` makes their samples.
"""
