"""From chapters to executed notebooks, result tables and the site; and the command line.

In come notebooks, presets and parameters; out go executed copies, tables and pages that say what
produced them, the bill of a run before it starts, and the notebooks of a course. How interactions
are measured, and when a claim is shown, is never known here.
"""
