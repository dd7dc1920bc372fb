"""From names and data to trained networks at checkpoints.

In come the name of a network (or a language model), a part of the data and a `TrainingConfig`; out
goes a `TrainingRun`, resumed exactly where it was stopped, or a `LanguageModel`, which is masked by
itself, as its tokenizer belongs to it. What is asked of interactions is never known here.
"""
