"""What Spark needs to keep a checkpoint on an S3 server."""

from __future__ import annotations

from pathlib import Path

from servers.maven import dependency, fetched_jars

SDK = "2.35.4"
# Spark has these jars itself, in its own versions.
_SPARKS_OWN = ("netty-", "slf4j-", "commons-", "http")
_KEPT = ("http-auth", "http-client-spi")


def fetched_s3a_jars() -> Path:
    """S3A and the parts of the AWS SDK that it needs, 16 MB, which Maven fetches once into the user's cache folder."""
    import pyspark

    (api,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    hadoop = api.stem.removeprefix("hadoop-client-api-")
    return fetched_jars(
        f"s3a-{hadoop}-{SDK}-1",
        [
            dependency(f"org.apache.hadoop:hadoop-aws:{hadoop}", alone=True),
            dependency("software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1", alone=True),
            *(dependency(f"software.amazon.awssdk:{part}:{SDK}") for part in ("s3", "s3-transfer-manager", "sts")),
        ],
        wanted=lambda jar: not jar.startswith(_SPARKS_OWN) or jar.startswith(_KEPT),
    )


def s3a_conf(endpoint: str) -> dict[str, str]:
    """Settings of Spark for moto's server."""
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": "test",
        "spark.hadoop.fs.s3a.secret.key": "test",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        # Hadoop's default since 3.5 reads ahead for Parquet, and needs an asynchronous client.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        # So does its copy of local files; without that client, it ends an executor.
        "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
    }
