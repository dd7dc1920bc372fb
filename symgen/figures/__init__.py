"""Figures: data in, matplotlib Axes or Figure out.

A function draws what it is given: tables, tensors, interactions. It neither measures nor judges.
Functions that may have several panels return the Figure; the others take and return Axes.
"""

from symgen.figures.curves import plot_curves
from symgen.figures.estimates import plot_estimates, plot_repeats
from symgen.figures.network import (
    explorer,
    plot_graph,
    plot_interactions,
    plot_masking,
    plot_matching,
    plot_variables,
)
from symgen.figures.scatter import plot_scatter
from symgen.figures.spectra import plot_sorted, plot_spectra, plot_spectrum
from symgen.figures.style import COLORS, legend_below, panels, set_style, slider
