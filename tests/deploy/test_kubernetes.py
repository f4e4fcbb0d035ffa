"""The manifest and the chart are valid, their commands are ours, and their pods have each partition as often as they say."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from millpond.cli import main
from millpond.schema.shard import parse_shard
from servers.helm import Helm, helm

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = DEPLOY / "kubernetes" / "shards.yaml"
CHART = DEPLOY / "helm" / "millpond"
VERSION = "1.34"
PARTITIONS = 64


def parts_of(manifest: str) -> dict[tuple[str, str], Any]:
    return {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(manifest) if part is not None}


def check(parts: dict[tuple[str, str], Any], *, name: str, copies: int) -> None:
    """Each part is valid, each partition is served by `copies` pods, and the router asks every pod."""
    for part in parts.values():
        kubernetes_validate.validate(part, VERSION, strict=True)
    served, routed = parts["StatefulSet", name]["spec"], parts["Deployment", f"{name}-router"]["spec"]
    assert served["serviceName"] == name

    (server,) = served["template"]["spec"]["containers"]
    had: Counter[int] = Counter()
    for pod in range(served["replicas"]):
        given = _serve_options(server, pod)
        assert given["host"] == "0.0.0.0"
        assert str(given["replica_dir"]) in {volume["mountPath"] for volume in server["volumeMounts"] if not volume.get("readOnly")}
        had.update(parse_shard(given["shard"]).partitions(PARTITIONS))
    assert had == Counter(dict.fromkeys(range(PARTITIONS), copies))

    (router,) = routed["template"]["spec"]["containers"]
    assert router["args"][0] == "route"
    given = main.named("route").make_context("millpond", router["args"][1:]).params
    port = parts["Service", name]["spec"]["ports"][0]["port"]
    assert list(given["urls"]) == [f"http://{name}-{pod}.{name}:{port}" for pod in range(served["replicas"])]
    assert given["port"] == parts["Service", f"{name}-router"]["spec"]["ports"][0]["port"]


def _serve_options(container: dict[str, Any], pod: int) -> dict[str, Any]:
    """What a pod's shell gives to `millpond serve`."""
    shell, option, script, name = container["command"]
    assert script.startswith('exec millpond serve "$@"')
    shards = next(variable["value"] for variable in container["env"] if variable["name"] == "SHARDS")
    command = [shell, option, script.replace("exec millpond", "printf '%s\\n'"), name, *container["args"]]
    environment = {"POD": str(pod), "SHARDS": shards, "PATH": "/usr/bin:/bin"}
    words = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    assert words[0] == "serve"
    return main.named("serve").make_context("millpond", words[1:]).params


def test_the_manifest() -> None:
    parts = parts_of(MANIFEST.read_text())
    check(parts, name="millpond", copies=2)
    broken = {**parts["Service", "millpond"], "spec": {"ports": "none"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


@pytest.fixture(scope="module")
def chart() -> Iterator[Helm]:
    with helm(CHART) as found:
        yield found


@pytest.mark.long
def test_helm_finds_no_fault(chart: Helm) -> None:
    passed, messages = chart.lint()
    assert passed, messages


@pytest.mark.long
def test_the_chart_is_the_manifest(chart: Helm) -> None:
    """So that neither is mended without the other."""
    assert parts_of(chart.template("millpond")) == parts_of(MANIFEST.read_text())


@pytest.mark.long
@pytest.mark.parametrize(("shards", "copies"), [(1, 1), (5, 3), (64, 1)])
def test_other_numbers_of_pods(chart: Helm, tmp_path: Path, shards: int, copies: int) -> None:
    values = tmp_path / "values.yaml"
    given = {"shards": shards, "copies": copies, "routers": 7, "pond": "s3://a b/it's $HOME", "serveOptions": ["--max-rows=5"]}
    values.write_text(yaml.safe_dump(given))
    parts = parts_of(chart.template("views", values))
    check(parts, name="views", copies=copies)
    assert parts["Deployment", "views-router"]["spec"]["replicas"] == 7
    (server,) = parts["StatefulSet", "views"]["spec"]["template"]["spec"]["containers"]
    options = _serve_options(server, 0)
    assert [str(place) for place in options["places"]] == ["s3://a b/it's $HOME"]
    assert options["max_rows"] == 5


@pytest.mark.long
@pytest.mark.parametrize("values", [{"shards": 0}, {"copies": 0}, {"shards": "three"}, {"pond": ""}, {"shard": 3}])
def test_values_that_make_no_sense_are_refused(chart: Helm, tmp_path: Path, values: dict[str, Any]) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    with pytest.raises(Exception, match=next(iter(values))):
        chart.template("views", given)
