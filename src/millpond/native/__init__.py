"""Loops over every byte of a state, in C: the same answers as Python, several times as fast.

Each C loop has a Python equivalent, used if the library isn't built or rejects the input; the
Python code raises the errors.  `library` loads the library, `calls` has one function for each loop,
and `hatch_build.py` builds it.
"""
