"""The constants of HyperLogLog++ that ship with the package are Spark's own."""

from __future__ import annotations

import random

from millpond.tables.finish.buffers.hllpp import bias


def test_bias_is_the_same_double_as_sparks_at_every_precision(spark):
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    loader = jvm.Thread.currentThread().getContextClassLoader()
    name = "org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper"
    constructor = jvm.java.lang.Class.forName(name, True, loader).getConstructors()[0]
    rng = random.Random(3)
    for precision in range(4, 19):
        arguments = gateway.new_array(jvm.Object, 1)
        arguments[0] = 1.106 / 2 ** (precision / 2) * 1.0001
        helper = constructor.newInstance(arguments)
        for _ in range(40):
            estimate = rng.uniform(0.1, 5.5) * (1 << precision)
            assert helper.estimateBias(estimate) == bias(precision, estimate)
