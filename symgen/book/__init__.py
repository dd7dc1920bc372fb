"""From chapters to executed notebooks, result tables and the site; and the command line.

In come notebooks, presets and parameters; out go executed copies, tables and pages that say what
produced them. How a number is computed is never known here.
"""
