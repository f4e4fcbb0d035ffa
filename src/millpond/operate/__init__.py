"""What whoever runs a job wants to see: measured from its checkpoint alone, kept for days."""

from __future__ import annotations

from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import read_samples

__all__ = ["OperatorSize", "Sample", "read_samples"]
