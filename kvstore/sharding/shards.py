"""The shards of a cluster as one store's calls, for asyncio (docs/sharding.md).

The idea: each shard has a link of its own. The table of calls says which shards a call reaches
(`wire.call_table`), `shard_plan` what each is asked and how their answers are one.

Invariants:

- A message that was sent to a shard goes to no other.
- A call for several shards waits `DOWN_WAIT` seconds at most for one that is down, but for a
  message that was sent.
- A change that some shards made and others did not raises `PartlyDone`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from kvstore.client.loop_link import LoopCalls, LoopLink
from kvstore.client.served_target import Credentials, Tls, read_target
from kvstore.clock import SystemClock
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.pulled_columns import PulledColumns
from kvstore.core.arrow.put_rows import columns_of_results
from kvstore.core.popping.receipts import Popped
from kvstore.errors import (
    AcrossShards,
    CallerError,
    ConnectionLost,
    PartlyDone,
    ReceiptIllegal,
    ScheduleNotFound,
    StoreError,
    TopicNotFound,
    shown,
)
from kvstore.message import Bounds, PulledBatch, PullResult, PullStatus, PutResult
from kvstore.meta.topics import TopicInfo
from kvstore.pop.inflight.listing import InFlightMessage, InFlightPage
from kvstore.pop.nack import Nack
from kvstore.record.put.explain import as_batch
from kvstore.record.validate import listed
from kvstore.sharding.batch_check import BatchCheck
from kvstore.sharding.shard import LACKING, Shard, worst
from kvstore.sharding.shard_plan import (
    ShardedCall,
    check_reset,
    combined,
    error_of_part,
    for_shard,
    is_queue,
    named_receipt,
    shard_of,
    shard_of_text,
    shares,
    split_receipt,
)
from kvstore.sharding.shard_pops import ShardPops
from kvstore.wire.addresses import TLS
from kvstore.wire.call_table import REACHES, Reach
from kvstore.wire.cluster_file import Cluster
from kvstore.wire.column_values import SentColumns, columns_of

DOWN_WAIT: Final = 5.0
"""Seconds that a call for several shards waits for one that is down."""
_EMPTY: Final[Mapping[str, Callable[[], Any]]] = {
    "bounds": lambda: Bounds(0, 0),
    "pull": lambda: PullResult([], 0, 0, 0, PullStatus.NO_MESSAGE_IN_QUEUE),
}
"""The answers about a queue of a topic that its shard does not have: dead letters are made where
they fall.
"""
_TOPIC_BITS: Final = 32
_TOPIC_MASK: Final = (1 << _TOPIC_BITS) - 1
_OF_PULLS: Final = ("topic", "queue", "offset", "limit", "max_bytes", "filter")
_ROWS: Final = 1024
"""The limit of a pull of columns that names none."""
Part = tuple[Shard, ShardedCall]


class Shards:
    """See the module; `connect` is to be awaited first."""

    def __init__(
        self,
        cluster: Cluster,
        url: str,
        reconnect_for: float,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.url = url
        self.folder = url
        self._patience = min(DOWN_WAIT, reconnect_for)
        urls = cluster.urls()
        # Where no shard has TLS the target says so.
        with_tls = [url for url in urls if url.startswith(f"{TLS}:")] or urls
        targets = [read_target(url, credentials, tls if url in with_tls else None) for url in urls]
        self.shards = [
            Shard(n, entry.name, len(targets), LoopCalls(LoopLink(targets[n], reconnect_for)))
            for n, entry in enumerate(cluster.shards)
        ]
        self._by_name = {shard.name: shard for shard in self.shards}
        self._count = len(self.shards)
        self._turns = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._check_batch = BatchCheck(self._topic, SystemClock())
        self._pops = ShardPops(self._count, self._up, self._receipts, self._patience)

    async def connect(self) -> None:
        """`ConnectionLost` if no shard can be reached."""
        links = [shard.link.connect() for shard in self.shards]
        found = await asyncio.gather(*links, return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        if len(errors) == self._count or any(not isinstance(e, ConnectionLost) for e in errors):
            await self.close()
            raise errors[0]

    async def close(self) -> None:
        """Ends the sessions with all shards."""
        await self._pops.close()
        await asyncio.gather(*(shard.calls.close() for shard in self.shards))

    def shard(self, name: str) -> Shard:
        """The shard of a name; `CallerError`."""
        found = self._by_name.get(name)
        if found is None:
            raise CallerError(
                f"there is no shard {shown(name)}; there are {', '.join(self._by_name)}"
            )
        return found

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Makes a call of a store, and returns its result."""
        if method not in REACHES:
            raise self._about_one(method)
        asked = ShardedCall(method, args, named)
        return await _WAYS[REACHES[method]](self, asked)

    async def single(self, method: str, asked: Any, size: int = 0) -> Any:
        """The result of one element of a call that takes a list. Calls of one turn of the loop do
        not go together: one for a shard that is down would hold up the others.
        """
        del size
        (result,) = await self.call(method, ([asked],), {})
        return result

    # --- asking ---

    def _up(self) -> list[Shard]:
        """The shards that can be reached, from another one on each time; all if there are none."""
        first = next(self._turns) % self._count
        turned = self.shards[first:] + self.shards[:first]
        for shard in turned:
            shard.link.seek()
        return [shard for shard in turned if shard.link.is_up] or turned

    async def _answers(self, parts: Sequence[Part], *, are_put: bool = False) -> list[Any]:
        """The answers of several shards, or their errors. A put that was sent is waited for."""
        is_one = len(parts) == 1

        async def answer(shard: Shard, asked: ShardedCall) -> Any:
            try:
                if is_one or (are_put and shard.link.is_up):
                    return await shard.ask(asked)
                return await shard.ask_while_up(asked, self._patience)
            except StoreError as e:
                return e

        return await asyncio.gather(*(answer(*part) for part in parts))

    # --- one shard ---

    async def _queue(self, asked: ShardedCall) -> Any:
        queue = asked.get("queue")
        if not is_queue(queue):
            return await self.shards[0].ask(asked)  # it says what is wrong
        shard = self.shards[queue % self._count]
        try:
            return await shard.ask(asked.but(queue=queue // self._count))
        except TopicNotFound:
            if asked.method not in _EMPTY:
                raise
            await self._any(ShardedCall("topic", (asked.get("topic"),), {}))
            return _EMPTY[asked.method]()

    async def _schedule(self, asked: ShardedCall) -> Any:
        name = asked.get("name")
        number = shard_of_text(name, self._count) if isinstance(name, str) else 0
        queue, group = asked.get("queue"), asked.get("message_group")
        if is_queue(queue):
            number, asked = queue % self._count, asked.but(queue=queue // self._count)
        elif isinstance(group, str):
            number = shard_of_text(group, self._count)
        with suppress(ScheduleNotFound):
            there = await self._first(ShardedCall("schedule_info", (name,), {}))
            return await there[0].ask(asked)
        return await self.shards[number].ask(asked)

    async def _holder(self, asked: ShardedCall) -> Any:
        """Asks the shard that has what an id names: all are asked, and the others have nothing."""
        prepared = asked.get("prepared")
        several = prepared if isinstance(prepared, list | tuple) else [prepared]
        numbers = {shard_of(one, self._count) for one in several if isinstance(one, PutResult)}
        if len(numbers) > 1:
            raise AcrossShards(
                f"{asked.method} is for transactions of {len(numbers)} shards; end those of each "
                "shard by themselves"
            )
        if isinstance(prepared, list | tuple):
            own: Any = [for_shard(one, self._count) for one in prepared]
            asked = asked.but(prepared=own)
        elif prepared is not None:
            asked = asked.but(prepared=for_shard(prepared, self._count))
        for number in numbers:
            if number is not None:
                return await self.shards[number].ask(asked)
        return (await self._first(asked))[1]

    async def _first(self, asked: ShardedCall) -> tuple[Shard, Any]:
        """The first shard that has it, with its answer."""

        async def answer(shard: Shard) -> tuple[Shard, Any]:
            try:
                return shard, await shard.ask_while_up(asked, self._patience)
            except StoreError as e:
                return shard, e

        tasks = [self._loop.create_task(answer(shard)) for shard in self.shards]
        errors: list[StoreError] = []
        try:
            for answered in asyncio.as_completed(tasks):
                shard, found = await answered
                if not isinstance(found, StoreError):
                    return shard, found
                errors.append(found)
        finally:
            for task in tasks:
                task.cancel()
        raise worst(errors)

    async def _one(self, asked: ShardedCall) -> Any:
        if self._count == 1:
            # Nobody waits for its progress here.
            silent = asked.but(progress=None) if asked.has("progress") else asked
            return await self.shards[0].ask(silent)
        raise self._about_one(asked.method)

    def _about_one(self, method: str) -> AcrossShards:
        return AcrossShards(
            f"{method} is about the log of one shard of {', '.join(self._by_name)}: call it of "
            "store.shard(name), or name that shard's folder"
        )

    # --- messages and offsets ---

    async def _batch(self, asked: ShardedCall) -> list[Any]:
        messages = as_batch(asked.get("messages"))
        parts = dict[int | None, list[int]]()
        for at, message in enumerate(messages):
            parts.setdefault(shard_of(message, self._count), []).append(at)
        free = parts.pop(None, [])
        if asked.get("set_id") is not None and len(parts) > 1:
            raise AcrossShards(
                f"the messages of the transaction belong to {len(parts)} shards by their queues "
                "and groups; a transaction is on one"
            )
        if free or not parts:
            up = self._up()
            with_others = [shard.number for shard in up if shard.number in parts]
            is_set = asked.get("set_id") is not None and parts
            number = (
                with_others[0] if with_others else next(iter(parts)) if is_set else up[0].number
            )
            parts[number] = sorted([*parts.get(number, []), *free])
        first = list[int | None]()
        if len(parts) > 1:
            is_prepared = asked.method == "prepare_batch"
            missing = await self._check_batch.check(messages, is_prepared=is_prepared)
            # A shard that makes topics by itself may take messages of one that is not there. It is
            # asked alone first, so that nothing is put if it refuses.
            of_missing = (
                n for n, at in parts.items() if any(messages[i].topic in missing for i in at)
            )
            first = list(itertools.islice(of_missing, 1)) if missing else []
        return await self._in_parts(asked, "messages", messages, parts, first)

    async def _topic(self, name: str) -> TopicInfo:
        found: TopicInfo = await self._any(ShardedCall("topic", (name,), {}))
        return found

    async def _columns(self, asked: ShardedCall) -> PulledBatch | SentColumns:
        """Columns become messages here, for each has a shard of its own."""
        if asked.method == "pull_columns":
            names = asked.get("columns")
            columns = PulledColumns(names)
            given = {name: asked.get(name) for name in _OF_PULLS if asked.has(name)}
            given.setdefault("limit", _ROWS)
            found = await self._queue(ShardedCall("pull", (), given))
            columns.extend(found.messages)
            bounds = found.next_offset, found.min_offset, found.max_offset
            return PulledBatch(columns.batch(), *bounds, found.status, found.expired)
        topic, rows = asked.get("topic"), GivenColumns(asked.get("columns"))
        messages = [rows.message(topic, row) for row in range(len(rows))]
        results = await self._batch(ShardedCall("put_batch", (messages,), {}))
        places = columns_of_results(results)
        return msgspec.structs.replace(columns_of(topic, results, places), columns=places)

    async def _commits(self, asked: ShardedCall) -> None:
        commits = [*listed("commits", asked.get("commits"))]
        own, parts = list[Any](), dict[int | None, list[int]]()
        for at, commit in enumerate(commits):
            number, local = 0, commit  # the shard says what is wrong with one that is none
            if isinstance(commit, list | tuple) and len(commit) == 4 and is_queue(commit[2]):
                number = commit[2] % self._count
                local = (*commit[:2], commit[2] // self._count, commit[3])
            own.append(local)
            parts.setdefault(number, []).append(at)
        await self._in_parts(asked, "commits", own, parts or {0: []})

    async def _in_parts(
        self,
        asked: ShardedCall,
        name: str,
        values: Sequence[Any],
        parts: Mapping[int | None, Sequence[int]],
        first: Sequence[int | None] = (),
    ) -> list[Any]:
        """Asks shards by their numbers with some of the values each, those of `first` before the
        others; the answers in the order of the values. `PartlyDone` if some shards did not do it;
        if one of `first` did not, the others are not asked.
        """
        order = [*first, *(n for n in parts if n not in first)]
        places = [(self.shards[n or 0], parts[n]) for n in order]
        asks = [
            (shard, asked.but(**{name: [for_shard(values[i], self._count) for i in at]}))
            for shard, at in places
        ]
        early = await self._answers(asks[: len(first)], are_put=True)
        if any(map(_is_error, early)):
            places, asks = places[: len(first)], []
        answers = early + await self._answers(asks[len(first) :], are_put=True)
        results: list[Any] = [None] * len(values)
        for (_, at), answer in zip(places, answers, strict=True):
            if isinstance(answer, StoreError) and name == "messages":
                error_of_part(answer, at, len(values))
            for n, i in enumerate(at):
                results[i] = answer[n] if isinstance(answer, list) else answer
        self._check(asked, [shard for shard, _ in places], answers, results)
        return results

    def _check(
        self,
        asked: ShardedCall,
        shards: Sequence[Shard],
        answers: Sequence[Any],
        results: Sequence[Any] = (),
    ) -> None:
        """Raises the error of shards, if there are any."""
        errors = {s.name: a for s, a in zip(shards, answers, strict=True) if _is_error(a)}
        if not errors:
            return
        kinds = {type(error) for error in errors.values()}
        if len(errors) == len(answers) and len(kinds) == 1:
            raise next(iter(errors.values()))
        done = [shard.name for shard in shards if shard.name not in errors]
        why = "; ".join(f"{name}: {error}" for name, error in errors.items())
        raise PartlyDone(
            f"{asked.method} was done on {', '.join(done) or 'no shard'}, and not on {why}",
            done,
            errors,
            results,
        )

    # --- receipts ---

    async def _receipts(self, asked: ShardedCall) -> Any:
        name = next(n for n in ("receipt", "receipts", "nacks") if asked.has(n))
        if name == "receipt":
            return await self._receipt(asked)
        given = listed(name, asked.get(name))
        results: list[Any] = [None] * len(given)
        parts = dict[str, list[int]]()
        own = list[Any]()
        for at, one in enumerate(given):
            shard, receipt = split_receipt(one.receipt if isinstance(one, Nack) else one)
            own.append(Nack(receipt, one.delay, one.reason) if isinstance(one, Nack) else receipt)
            if shard in self._by_name:
                parts.setdefault(shard, []).append(at)
            else:
                results[at] = _no_receipt(receipt)
        asks = [
            (self._by_name[shard], asked.but(**{name: [own[i] for i in at]}))
            for shard, at in parts.items()
        ]
        answers = await self._answers(asks)
        for (shard, places), answer in zip(parts.items(), answers, strict=True):
            if isinstance(answer, StoreError) and len(parts) == 1:
                raise answer
            for n, i in enumerate(places):
                found = answer if isinstance(answer, StoreError) else answer[n]
                results[i] = named_receipt(shard, found) if type(found) is str else found
        return results

    async def _receipt(self, asked: ShardedCall) -> Any:
        name, receipt = split_receipt(asked.get("receipt"))
        if name not in self._by_name:
            raise _no_receipt(receipt)
        found = await self._by_name[name].ask(asked.but(receipt=receipt))
        return named_receipt(name, found) if type(found) is str else found

    # --- all shards ---

    async def _any(self, asked: ShardedCall) -> Any:
        """An answer of the shards that can be reached: they share topics and groups."""
        shards = sorted(self._up(), key=lambda shard: shard.number)
        return self._combined(asked, await self._answers([(shard, asked) for shard in shards]))

    async def _sum(self, asked: ShardedCall) -> Any:
        """An answer that is not whole without that of each shard."""
        answers = await self._answers([(shard, asked) for shard in self.shards])
        for answer in answers:
            if isinstance(answer, StoreError) and not isinstance(answer, LACKING):
                raise answer
        return self._combined(asked, answers)

    async def _pages(self, asked: ShardedCall) -> InFlightPage:
        """A page of shards one after the other: `next` has the shard's number above its topic."""
        after, limit = asked.get("after"), asked.get("limit", 64)
        first, local = 0, after
        if isinstance(after, list | tuple) and after and is_queue(after[0]):
            first, local = after[0] >> _TOPIC_BITS, (after[0] & _TOPIC_MASK, *after[1:])
        messages, count, ended = list[InFlightMessage](), 0, None
        lacking = list[StoreError]()
        for shard in self.shards:
            rest = limit - len(messages) if type(limit) is int else limit
            # Of the others there is but the count.
            is_counted = shard.number < first or ended is not None or (rest == 0 and limit != 0)
            own = asked.but(limit=1 if is_counted else rest)
            own = own.but(after=local if shard.number == first else None)
            try:
                page = await shard.ask_while_up(own, self._patience)
            except LACKING as e:
                lacking.append(e)
                continue
            count += page.count
            if not is_counted:
                messages += page.messages
            if page.next and not is_counted:
                ended = ((shard.number << _TOPIC_BITS) + page.next[0], *page.next[1:])
            elif is_counted and shard.number >= first and page.messages and ended is None:
                ended = (shard.number << _TOPIC_BITS, 0, 0, 0, 0)
        if len(lacking) == self._count:
            raise lacking[0]
        return InFlightPage(messages, count, ended)

    def _combined(self, asked: ShardedCall, answers: Sequence[Any]) -> Any:
        good = [answer for answer in answers if not _is_error(answer)]
        if not good:
            raise worst(list(answers))
        return combined(asked, good, self._count)

    async def _all(self, asked: ShardedCall) -> Any:
        """A change of each shard. Some may lack what is changed, but not all of them."""
        if asked.method == "reset_offset":
            if asked.get("queue") is not None:
                return await self._queue(asked)
            check_reset(asked)
        if asked.method == "redrive" and asked.get("limit") is not None:
            return await self._redrive(asked)
        own = shares(asked, self._count)
        answers = await self._answers([(shard, own) for shard in self.shards])
        there = [
            (shard, answer)
            for shard, answer in zip(self.shards, answers, strict=True)
            if not isinstance(answer, LACKING)
        ]
        self._check(asked, [shard for shard, _ in there], [answer for _, answer in there])
        return self._combined(asked, answers)

    async def _redrive(self, asked: ShardedCall) -> int:
        """Up to a limit together: one shard after the other."""
        limit, total, lacking = asked.get("limit"), 0, list[StoreError]()
        for shard in self.shards:
            rest = limit - total if type(limit) is int else limit
            if total and rest == 0:
                break
            try:
                total += await shard.ask(asked.but(limit=rest))
            except LACKING as e:
                lacking.append(e)
        if len(lacking) == self._count:
            raise lacking[0]
        return total

    async def _pop(self, asked: ShardedCall) -> list[Popped]:
        if asked.get("queue") is not None:
            return await self._queue(asked)  # type: ignore[no-any-return]  # of a pop
        return await self._pops.pop(asked)


def _is_error(answer: object) -> bool:
    return isinstance(answer, StoreError)


def _no_receipt(receipt: object) -> ReceiptIllegal:
    return ReceiptIllegal(f"{shown(receipt)} is no receipt of a shard of this cluster")


_WAYS: Final[Mapping[Reach, Callable[[Shards, ShardedCall], Coroutine[Any, Any, Any]]]] = {
    "queue": Shards._queue,
    "batch": Shards._batch,
    "columns": Shards._columns,
    "commits": Shards._commits,
    "receipts": Shards._receipts,
    "pop": Shards._pop,
    "holder": Shards._holder,
    "schedule": Shards._schedule,
    "any": Shards._any,
    "sum": Shards._sum,
    "pages": Shards._pages,
    "all": Shards._all,
    "one": Shards._one,
}
