"""From names and data to trained networks at checkpoints.

In come the name of a network (or a language model), a part of the data and a `TrainingConfig`; out
goes a `TrainingRun`, resumed exactly where it was stopped, or a `LanguageModel`. What is asked of
their interactions is never known here.
"""
