"""From a model, samples and variables to v on all 2^n masked states, and to interactions."""
