"""From outputs on masked states to the sparsest AND-OR interactions, with a certificate."""
