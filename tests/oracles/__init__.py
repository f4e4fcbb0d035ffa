"""What an answer must equal: Spark's own evaluation, what a query emitted, accounts recomputed.

Also how calls end, and values in forms to compare.
"""
