"""The OpenAPI document is true: schemathesis asks what it allows and what it forbids, and checks every answer by it.

A seed makes failures repeatable.  Schemathesis can't guess names of tables and columns, so the test gives them.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from millpond.serve.routes import ROUTES
from millpond.settings import ServeSettings
from suite.sizes import a_few
from suite.waiting import wait_until

SEED = int(os.environ.get("MILLPOND_SEED", "20261121"))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
# Existing tables and columns; schemathesis makes up everything else.
TABLES = ("long", "string", "price", "timestamp", "struct", "map")
EXAMPLES = 25


@pytest.fixture(scope="module")
def api(http_door: str) -> Any:
    wait_until(lambda: httpx.get(f"{http_door}/readyz", timeout=60).status_code == 200, "a server that is ready")
    return schemathesis.openapi.from_url(f"{http_door}/openapi.json")


def test_the_document_has_every_route_and_no_other(api: Any, http_door: str) -> None:
    document = httpx.get(f"{http_door}/openapi.json", timeout=60).json()
    assert document["openapi"].startswith("3.1")
    documented = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert documented == {(r.method, r.path) for r in ROUTES}


@pytest.mark.parametrize("route", a_few(ROUTES, 10), ids=lambda r: f"{r.method} {r.path}")
def test_every_answer_is_one_that_the_document_names(route: Any, api: Any, http_door: str) -> None:
    operation = api[route.path][route.method]
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    answered: list[int] = []

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES if "{table}" in route.path else 10,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=cases, table=st.sampled_from(TABLES), real=st.booleans(), key=st.sampled_from(["k", "n", "_x"]))
    def attack(case: Any, table: str, real: bool, key: str) -> None:
        if "{table}" in route.path and real:
            case.path_parameters = {"table": table}
        if real and route.has_body and isinstance(case.body, dict):
            case.body = {**case.body, **({"keys": [{key: 1}]} if "keys" in case.body else {"key": {key: 1}})}
        for members in (case.query, case.body, case.body.get("bounds") if isinstance(case.body, dict) else None):
            _wait_briefly(members)
        answer = case.call(base_url=http_door, timeout=60)
        answered.append(answer.status_code)
        # A bound that isn't met gives 503; this server gives it for no other reason.
        assert answer.status_code < 500 or answer.json()["error"]["condition"] == "NOT_UP_TO_BOUND", answer.text
        case.validate_response(answer, checks=CHECKS)

    attack()
    assert answered


def _wait_briefly(members: Any) -> None:
    """Shorten valid waiting times, since the tables asked for will never come."""
    for name in ("_wait_seconds", "wait_seconds"):
        value = members.get(name) if isinstance(members, dict) else None
        if isinstance(value, int | float) and 0.1 < value <= ServeSettings().max_seconds:
            members[name] = 0.1
