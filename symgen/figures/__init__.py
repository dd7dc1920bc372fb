"""One function for each figure of the book; each returns the Axes and the numbers it drew.

In come interactions, tables and curves that were measured; what is measured, and what it would mean
for a claim, is never decided here. Colours mean the same everywhere, stay apart for colour-blind
readers, and are backed by hatching or line style, so that a grey print can be read too.
"""

from symgen.figures.attributions import plot_attributions, plot_explained, plot_surrogates
from symgen.figures.baselines import (
    plot_agreement,
    plot_baseline_gains,
    plot_baseline_hits,
    plot_baseline_power,
    plot_baseline_spectra,
    plot_spectra_and_sets,
    plot_two_spectra,
)
from symgen.figures.conditions import (
    plot_average_output,
    plot_conditions,
    plot_exponents,
    plot_growth,
    plot_one_average,
    plot_order_tail,
)
from symgen.figures.extraction import (
    plot_face,
    plot_graph,
    plot_interactions,
    plot_mask_values,
    plot_matching,
    plot_price,
    plot_sparsity,
    plot_variables,
)
from symgen.figures.extractors import plot_planted
from symgen.figures.language import plot_changes, plot_course
from symgen.figures.metric import (
    plot_metric_power,
    plot_metric_spectra,
    plot_shapes,
    plot_similarity,
    plot_similarity_cuts,
)
from symgen.figures.penalty import plot_against_paper, plot_arms
from symgen.figures.removal import (
    plot_gap_parts,
    plot_removal,
    plot_removed_outputs,
    plot_several_removals,
)
from symgen.figures.sampling import plot_peers, plot_sampled
from symgen.figures.style import COLOURS, WHISKERS, set_style, slider
from symgen.figures.training import (
    plot_boundaries,
    plot_cases,
    plot_dynamics,
    plot_gains,
    plot_moves,
    plot_several_dynamics,
    plot_training,
)
from symgen.figures.transfer import (
    plot_low_high,
    plot_power,
    plot_sensitivity,
    plot_spectrum,
    plot_transfer,
)
from symgen.literal import no_math, plain
