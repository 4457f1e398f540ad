"""Local mathematics of the heavy parts of a step, each with a plain reference.

No mesh and no communication, but for the sums over a divided vocabulary in `cross_entropy`.
"""
