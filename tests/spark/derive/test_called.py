"""An error names a refused function as its user calls it."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as sf

from millpond.spark import derive
from millpond.spark.derive.definition import MillpondWarning


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("sentences(max(s))", "sentences isn't"),
        ("hex(aes_encrypt(max(s), '0000111122223333'))", "aes_encrypt isn't"),
        ("xpath_int(max(s), 'a/b')", "xpath_int isn't"),
        ("max(s) || uuid()", "uuid isn't"),
    ],
)
def test_a_refusal_names_the_function_as_its_user_does(spark, text, called):
    """It doesn't name what Spark makes of the function: a call of Java."""
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS s")
    with pytest.warns(MillpondWarning, match=called):
        derive(stream.groupBy("s").agg(sf.expr(text).alias("c")), table="t")
