"""From names and data to trained networks at checkpoints.

`registry` holds the networks, `training` trains them, `language` does the same for language models,
and `own` reads a reader's checkpoints.
"""
