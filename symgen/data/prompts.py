"""Moved to `symgen.masking.prompts`."""

from symgen.masking.prompts import draw_prompts as draw_prompts
