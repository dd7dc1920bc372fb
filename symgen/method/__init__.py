"""From interactions to numbers and verdicts."""
