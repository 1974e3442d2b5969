"""Receives whose clients took them back: what they brought in this moment is given back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvstore import Popped, Store
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.replies.open_calls import OpenCall
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import answers, request_of
from tests.support.waiting import until


class CancellingGatherer(Gatherer):
    """Its first pop has its task cancelled in the moment in which it has its messages."""

    pops = 0

    def pop(self, *asked: Any, **more: Any) -> OpenCall[list[Popped]]:
        call = super().pop(*asked, **more)
        task = asyncio.current_task()
        assert task is not None
        if not self.pops:
            call.add_done_callback(lambda _: task.cancel())
        self.pops += 1
        return call


@pytest.mark.topic(queues=1)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_receive_that_is_taken_back_as_it_ends_gives_its_messages_back(
    store: Store, tmp_path: Path, ordered: bool
) -> None:
    store.create_group("g", ordered=ordered)
    store.put("t", b"b")
    with (
        OpenDoor(store, gathers=CancellingGatherer) as door,
        RocketmqClient(door.endpoint, tmp_path) as client,
    ):
        with pytest.raises(Exception, match="CANCELLED"):
            answers(client, "ReceiveMessage", request_of("ReceiveMessage"))
        until(lambda: sum(one.in_flight - one.due for one in store.group_stats("g")) == 0)
        _, message, _ = answers(client, "ReceiveMessage", request_of("ReceiveMessage"))
        assert message.message.body == b"b"
        assert message.message.system_properties.delivery_attempt == 1
