"""The rule about cross-validation: do two baseline networks agree on what generalizes?"""

from symgen.method.agreement import RELABELLED, Agreement
from symgen.method.claims.judgement import Judgement, lead
from symgen.method.statistics import interval


def cross_validation(found: Agreement) -> Judgement:
    """Spectra that generalize to B and to C agree more than by chance, and than with B untrained.

    Measured is Jaccard of each sample, less what it is there when the variables of C are relabelled
    at random, and less what it is when B is as before its first step. Differences up to 0.02 count
    as none. Samples on which both spectra are empty are left out. How high Jaccard is decides
    nothing: the paper gives 0.71 and 0.75 for its networks, without these controls.
    """
    overlap = found.spectra()
    contrasts = [
        lead(f"Jaccard of B and C, less that of {text}", overlap - found.spectra(name))
        for text, name in (("C relabelled", RELABELLED), ("B untrained", "B untrained"))
    ]
    level = f"Jaccard of B and C is {interval(overlap, share=True)} per sample"
    level += f" and {found.mean_spectra()} of the mean spectra."
    return Judgement(contrasts, int(overlap.isfinite().sum()), level)
