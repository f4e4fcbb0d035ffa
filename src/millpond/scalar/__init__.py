"""Spark's scalar expressions: which are known, and how each is evaluated without a JVM.

Each is declared once, in the list at the end of the module of its kind; `table.py` has all of them.
"""
