"""The protocol's tables say the same as the stubs that RocketMQ's Python client brings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from kvstore.errors import CallerError
from kvstore.serve.grpc.protocol.wire import NUMBERS, POOL, message_class, parse

STUBS = """
import json
from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2

def kind(field):
    named = field.message_type or field.enum_type
    return named.full_name if named else ""

def union(field):
    return field.containing_oneof.name if field.containing_oneof else ""

def fields(message):
    return {
        f.name: [f.number, f.type, f.is_repeated, f.has_presence, union(f), kind(f)]
        for f in message.fields
    }

enums, messages = {}, {}

def note(found, kinds):
    for message in found:
        messages[message.full_name] = fields(message)
        note(message.nested_types, message.enum_types)
    for one in kinds:
        enums[one.full_name] = {v.name: v.number for v in one.values}

for module in (definition_pb2, service_pb2, admin_pb2):
    file = module.DESCRIPTOR
    note(file.message_types_by_name.values(), file.enum_types_by_name.values())
services = {
    service.full_name: sorted(method.name for method in service.methods)
    for module in (service_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
print(json.dumps([enums, messages, services]))
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Enumerations, messages and services; of another process, for the client has a log."""
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    return json.loads(subprocess.check_output([sys.executable, "-c", STUBS], env=home))


def own_fields(name: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for field in POOL.FindMessageTypeByName(name).fields:
        named = field.message_type or field.enum_type
        union = field.containing_oneof
        found[field.name] = [
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            union.name if union else "",
            named.full_name if named else "",
        ]
    return found


def test_every_message_has_the_same_fields(stubs: Any) -> None:
    assert {name: own_fields(name) for name in stubs[1]} == stubs[1]


def test_every_enumeration_has_the_same_names_and_numbers(stubs: Any) -> None:
    package = "apache.rocketmq.v2."
    assert {package + name: numbers for name, numbers in NUMBERS.items()} == stubs[0]


def test_every_message_of_the_tables_is_one_of_the_protocol(stubs: Any) -> None:
    own = POOL.FindFileContainingSymbol("apache.rocketmq.v2.Message").message_types_by_name
    assert {f"apache.rocketmq.v2.{name}" for name in own} <= stubs[1].keys()


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc"])
def test_bytes_that_are_no_message_are_an_error(raw: bytes) -> None:
    with pytest.raises(CallerError, match="can't be read as a SendMessageRequest"):
        parse(message_class("SendMessageRequest"), raw)
