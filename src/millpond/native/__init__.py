"""Loops over every byte of a state, in C: the same answers as the Python beside which they stand, several times sooner.

Python asks; where the library wasn't built, or says no, Python does it itself, and knows what to say of damage.  `library` loads
it, `calls` has a function for each of its own.  `hatch_build.py` builds it.
"""
