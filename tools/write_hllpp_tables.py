"""Write src/millpond/tables/finish/buffers/hllpp.json: the constants of HyperLogLog++ as Spark has them, read out of its own class.

    python tools/write_hllpp_tables.py

Shape:   {"spark": version, "neighbours": K, "thresholds": [by precision from 4], "estimates": [[…]], "biases": [[…]]}; numbers are
         written so that they read back to the same doubles.
Source:  org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper, which took them from the appendix of "HyperLogLog in
         Practice" (Heule, Nunkesser, Hall; 2013).
"""

from __future__ import annotations

import json
from pathlib import Path

import millpond

TARGET = Path(__file__).parents[1] / "src" / "millpond" / "tables" / "finish" / "buffers" / "hllpp.json"


def main() -> None:
    """Read the constants by reflection and write them."""
    spark = millpond.session("hllpp tables", **{"spark.master": "local[1]", "spark.ui.enabled": "false"})
    try:
        loader = spark._jvm.Thread.currentThread().getContextClassLoader()
        name = "org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper$"
        kind = spark._jvm.java.lang.Class.forName(name, True, loader)
        module = kind.getField("MODULE$").get(None)
        tables = {
            "spark": spark.version,
            "neighbours": int(module.K()),
            "thresholds": [float(x) for x in module.THRESHOLDS()],
            "estimates": [[float(x) for x in row] for row in module.RAW_ESTIMATE_DATA()],
            "biases": [[float(x) for x in row] for row in module.BIAS_DATA()],
        }
    finally:
        spark.stop()
    TARGET.write_text(json.dumps(tables, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
