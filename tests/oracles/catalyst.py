"""Spark's own evaluation of expressions, row by row and error by error.

No job runs: Spark's code generation compiles each expression, and applies it to rows of the test."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.errors import MillpondError
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.types import Field, parse_fields, parse_type
from millpond.spark.derive.called import invoked_name
from millpond.spark.derive.expression import Scope, translate
from millpond.tables.finish.definition import compile_expression
from oracles.emitted import bits

_HELPER = """
import java.io.*;
import org.apache.spark.sql.catalyst.expressions.*;
public class RowOracle {
  private static UnsafeProjection projection(scala.collection.immutable.Seq expressions, scala.collection.immutable.Seq input,
      boolean compiled) {
    if (compiled) return UnsafeProjection.create(expressions, input);
    scala.collection.immutable.Seq bound = BindReferences.bindReferences(expressions, new package$AttributeSeq(input));
    return InterpretedUnsafeProjection.createProjection(bound);
  }

  public static byte[] run(scala.collection.immutable.Seq expressions, scala.collection.immutable.Seq input, byte[] rows,
      int columns, boolean compiled) throws Exception {
    UnsafeProjection projection = projection(expressions, input, compiled);
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(rows));
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    while (in.available() > 0) {
      byte[] data = new byte[in.readInt()];
      in.readFully(data);
      UnsafeRow row = new UnsafeRow(columns);
      row.pointTo(data, data.length);
      try {
        UnsafeRow made = projection.apply(row);
        byte[] result = made.getBytes();
        out.writeInt(result.length);
        out.write(result);
      } catch (Throwable wrong) {
        String text = wrong.toString();
        // What failed may have left state behind.
        projection = projection(expressions, input, compiled);
        out.writeInt(-1);
        out.writeUTF(text.substring(0, Math.min(300, text.length())));
      }
    }
    return bytes.toByteArray();
  }

  public static String texts(byte[] patterns, boolean single) throws Exception {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(patterns));
    StringBuilder out = new StringBuilder();
    while (in.available() > 0) {
      out.append(single ? Float.toString(Float.intBitsToFloat(in.readInt())) : Double.toString(in.readDouble())).append('\\n');
    }
    return out.toString();
  }

  public static String letters(String texts, boolean upper) {
    String[] parts = texts.split("\\u0000");
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < parts.length; i++) {
      org.apache.spark.unsafe.types.UTF8String text = org.apache.spark.unsafe.types.UTF8String.fromString(parts[i]);
      out.append(upper ? org.apache.spark.sql.catalyst.util.CollationAwareUTF8String.toUpperCase(text)
        : org.apache.spark.sql.catalyst.util.CollationAwareUTF8String.toLowerCase(text)).append('\\u0000');
    }
    return out.toString();
  }
}
"""


def compile_java(spark: Any, name: str, source: str) -> Any:
    """Compile Java in the session's JVM; returns an object of the class."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    loaded = compiler.getClassLoader().loadClass(name)
    return loaded.getDeclaredConstructor(gateway.new_array(jvm.Class, 0)).newInstance(gateway.new_array(jvm.Object, 0))


class SparkFailed(Exception):
    """Spark threw this for a row."""


class Catalyst:
    """Columns and rows, and expressions over them, evaluated by Spark and by Millpond."""

    def __init__(self, spark: Any, ddl: str) -> None:
        self._spark = spark
        spark.conf.set("spark.sql.timeType.enabled", "true")
        self._jvm = spark._jvm
        schema = self._jvm.org.apache.spark.sql.types.StructType.fromDDL(ddl)
        empty = self._jvm.org.apache.spark.sql.catalyst.InternalRow
        rdd = spark.sparkContext._jsc.sc().emptyRDD(self._jvm.scala.reflect.ClassTag.apply(empty._java_lang_class))
        frame = spark._jsparkSession.internalCreateDataFrame(rdd, schema, False)
        self.frame = frame
        self._output = frame.queryExecution().analyzed().output()
        self.fields: tuple[Field, ...] = parse_fields(json.loads(schema.json()))
        self.type_names = [str(f.dataType().sql()) for f in schema.fields()]
        self.rows: list[tuple[Any, ...]] = []
        self._bytes = b""
        self._scope: Scope | None = None
        self._helper = compile_java(spark, "RowOracle", _HELPER)

    def use(self, rows: list[tuple[Any, ...]]) -> None:
        """Take other rows."""
        encode = encoder(self.fields)
        self.rows = rows
        self._bytes = b"".join(struct.pack(">i", len(data)) + data for data in map(encode, rows))

    def optimized(self, texts: list[str], *, lenient: bool = False) -> list[Any]:
        """The expressions of Spark's optimized plan for SQL texts; None where Spark has no such function for these types.

        lenient:  also None if Spark finds anything else wrong with it
        """
        from pyspark.errors import AnalysisException

        out = []
        for text in texts:
            if text.startswith("@"):
                out.append(self._made_by_the_optimizer(text))
                continue
            columns = self._spark.sparkContext._gateway.new_array(self._jvm.String, 1)
            columns[0] = f"{text} AS x"
            try:
                plan = self.frame.selectExpr(columns).queryExecution().optimizedPlan()
            except AnalysisException as refused:
                if not lenient and "DATATYPE_MISMATCH" not in str(refused):
                    raise
                out.append(None)
                continue
            out.append(plan.projectList().apply(0))
        return out

    def _made_by_the_optimizer(self, text: str) -> Any:
        """Expressions that SQL can't write: `@MakeDecimal l1 true`."""
        name, column, *rest = text[1:].split()
        child = self._output.apply([f.name for f in self.fields].index(column))
        classes = self._jvm.org.apache.spark.sql.catalyst.expressions
        if name == "MakeDecimal":
            return classes.MakeDecimal(child, 10, 2, rest == ["true"])
        if name == "CheckOverflow":
            return classes.CheckOverflow(child, self._jvm.org.apache.spark.sql.types.DecimalType(10, 2), rest == ["true"])
        if name == "UnscaledValue":
            return classes.UnscaledValue(child)
        if name == "AtLeastNNonNulls":
            return classes.AtLeastNNonNulls(int(rest[0]), self._output)
        assert name == "NormalizeNaNAndZero"
        return self._jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero(child)

    def classes(self, texts: list[str]) -> set[str]:
        """Spark's classes in these expressions."""
        found: set[str] = set()

        def walk(node: Any) -> None:
            found.add(invoked_name(node))
            for n in range(node.children().size()):
                walk(node.children().apply(n))

        for expression in self.optimized(texts):
            if expression is not None:
                walk(expression)
        return found

    def java_texts(self, patterns: list[int], *, single: bool) -> list[str]:
        """The texts that this JVM writes for bit patterns of floats or doubles."""
        data = b"".join(struct.pack(">I", p) if single else struct.pack(">q", p) for p in patterns)
        return str(self._helper.texts(data, single)).splitlines()

    def icu(self, change: str, texts: list[str]) -> list[str]:
        """Texts in upper or lower case, by the function that Spark calls."""
        return str(self._helper.letters("\0".join(texts), change == "toUpperCase")).split("\0")[:-1]

    def by_spark(self, expression: Any, *, compiled: bool = True) -> list[Any]:
        """Spark's value for each row, in stored form; SparkFailed for a row that fails.

        compiled:  use Spark's generated code, which takes some time to make; otherwise its interpreter
        """
        one = self._jvm.PythonUtils.toSeq([expression])
        data = bytes(self._helper.run(one, self._output, self._bytes, len(self.fields), compiled))
        type_ = parse_type(json.loads(expression.dataType().json()))
        decode = decoder((Field("x", type_),))
        out: list[Any] = []
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from(">i", data, place)
            place += 4
            if length < 0:
                (length,) = struct.unpack_from(">H", data, place)
                out.append(SparkFailed(data[place + 2 : place + 2 + length].decode("utf-8", "replace")))
                place += 2 + length
            else:
                out.append(decode(data[place : place + length])[0])
                place += length
        return out

    def scope(self) -> Scope:
        """The columns as buffers."""
        scope = Scope(same_java=True, same_zone=True)
        for n, field in enumerate(self.fields):
            scope.add(self._output.apply(n), buffer_column(n, field.type))
        return scope

    def translated(self, expression: Any) -> Expression:
        if self._scope is None:
            self._scope = self.scope()
        return translate(expression, self._scope)

    def by_millpond(self, expression: Expression) -> list[Any]:
        """Millpond's value for each row, or the error for a row that fails."""
        evaluate = compile_expression(expression, ())
        return [attempt(evaluate, row) for row in self.rows]


def form(value: Any) -> Any:
    """A form in which only equal bits are equal; tuples and lists differ."""
    if isinstance(value, tuple | list):
        return type(value).__name__, [form(v) for v in value]
    return bits(value)


def attempt(evaluate: Callable[..., Any], row: tuple[Any, ...]) -> Any:
    try:
        return evaluate((), row)
    except MillpondError as failed:
        return failed
