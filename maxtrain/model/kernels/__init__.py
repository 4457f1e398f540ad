"""Local mathematics of the heavy parts of a step: no mesh, no communication, and a plain reference of each."""
