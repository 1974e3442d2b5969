"""Rights: what patterns match, and what each action needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ConfigError
from kvstore.serve.access.rights import EVERYTHING, Action, Patterns, Rights, allows

ACTIONS: tuple[Action, ...] = ("produce", "consume", "admin")


def patterns(*texts: str) -> Patterns:
    return Patterns.of(texts, "produce")


def test_a_client_without_rights_may_do_nothing_but_name_its_producer_group() -> None:
    none = Rights()
    for action in ACTIONS:
        assert not allows(none, action)
        assert not allows(none, action, topic="orders")
        assert not allows(none, action, topic="orders", group="billing")
    assert not allows(none, "consume", group="billing")
    assert not allows(none, "admin", group="billing")


def test_patterns_are_names_beginnings_or_all() -> None:
    found = patterns("orders", "audit-*")
    assert [found.match(n) for n in ("orders", "orders2", "audit-", "audit-x", "audit")] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert patterns("*").match("anything")
    assert not patterns().match("")


@pytest.mark.parametrize("text", ["", "*x", "a*b", "**"])
def test_a_pattern_with_a_star_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="produce has the pattern"):
        patterns(text)


def test_to_consume_needs_the_topic_and_the_group() -> None:
    rights = Rights(consume=patterns("orders"), groups=patterns("billing"))
    assert allows(rights, "consume", topic="orders", group="billing")
    assert allows(rights, "consume", topic="orders")
    assert not allows(rights, "consume", topic="orders", group="other")
    assert not allows(rights, "consume", topic="refunds", group="billing")
    assert not allows(rights, "produce", topic="orders")


def test_a_groups_own_dead_letters_come_with_the_group() -> None:
    rights = Rights(groups=patterns("billing"))
    assert allows(rights, "consume", topic="%DLQ%billing")
    assert not allows(rights, "consume", topic="%DLQ%other")
    assert not allows(rights, "produce", topic="%DLQ%billing")


def test_topics_of_the_store_itself_need_the_right_to_administer_them() -> None:
    wide = Rights(produce=patterns("*"), consume=patterns("*"))
    assert not allows(wide, "consume", topic="rmq_sys_wheel_timer")
    assert not allows(wide, "produce", topic="SCHEDULE_TOPIC_XXXX")
    assert allows(Rights(admin=patterns("rmq_sys*")), "consume", topic="rmq_sys_wheel_timer")


def test_only_who_administers_all_names_administers_the_store() -> None:
    assert not allows(Rights(admin=patterns("orders*")), "admin")
    assert allows(Rights(admin=patterns("*")), "admin")
    assert all(allows(EVERYTHING, action, topic="t", group="g") for action in ACTIONS)


@given(
    st.lists(st.sampled_from(["a", "b*", "c", "*"])), st.sampled_from(["a", "b", "bx", "d"]),
    st.sampled_from(ACTIONS),
)  # fmt: skip
def test_admin_of_a_name_includes_the_other_rights(
    texts: list[str], name: str, action: Action
) -> None:
    admin = patterns(*texts)
    assert allows(Rights(admin=admin), action, topic=name) is admin.match(name)
