"""Receipts: the texts that prove deliveries.

The idea: all messages of a lock row share the first part of their receipts, which says where the
row is and which delivery it stands for; behind it come a message's place in the row and a tag. All
tags of a row are slices of one SHAKE-128 over the store's secret and the first part, so one hash
makes and checks a whole batch. Receipts that were made or checked a moment ago are remembered:
acking a batch as it was popped compares lists, not texts.

Invariants: a text that was changed anywhere, or made by another store, is `ReceiptIllegal`; the
same delivery always has the same receipts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import shake_128
from operator import add
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from kvstore.errors import (
    ReceiptIllegal,
    shown,
)
from kvstore.index.families import Families
from kvstore.index.keys import META, RECEIPT_SECRET, LockKey

if TYPE_CHECKING:
    from kvstore.pop.inflight.table import InflightTable

_HEAD: Final = Struct(">IIQIQQ")  # the row's key, and the nonce
HEAD_CHARS: Final = 2 * _HEAD.size
_PLACE_CHARS: Final = 2
_TAG_BYTES: Final = 6
_TAG_CHARS: Final = 2 * _TAG_BYTES
RECEIPT_CHARS: Final = HEAD_CHARS + _PLACE_CHARS + _TAG_CHARS
_SECRET_BYTES: Final = 32
_REMEMBERED: Final = 1024
_PLACES: Final = tuple(f"{i:02x}" for i in range(256))
_FIRST: Final = _PLACES[0]
pack_head: Final = _HEAD.pack


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The first part of receipts, as values: a row's key and its nonce; with it the remembered
    receipts.
    """

    key: LockKey
    nonce: int
    locked: int = 0
    """The bitmap of `receipts`; 0 where they are not remembered."""
    receipts: list[str] = []
    raw_key: bytes = b""
    table: InflightTable | None = None
    """The table of the row, if the row is as it was made while `epoch` is the table's."""
    epoch: int = -1


class Receipts:
    """Makes and reads a store's receipts."""

    def __init__(self, secret: bytes) -> None:
        self._hash = shake_128(secret)
        self.remembered: dict[str, Delivery] = {}
        """The first part of receipts -> their delivery, for some that are not acked yet."""

    def make(self, delivery: Delivery, locked: int) -> list[str]:
        """The receipts of a row's messages, in the order of their offsets."""
        delivery.locked = locked
        return self.sign(delivery, pack_head(*delivery.key, delivery.nonce))

    def sign(self, delivery: Delivery, head: bytes) -> list[str]:
        """The receipts of a delivery that says which bits are locked; `head` is its key and nonce,
        packed.
        """
        text, locked = head.hex(), delivery.locked
        hashed = self._hash.copy()
        hashed.update(head)
        if locked == 1:
            receipts = [text + _FIRST + hashed.hexdigest(_TAG_BYTES)]
        else:
            # All tags by two calls, and the rest by `map`: 5 us for 32 receipts instead of 9.
            count = locked.bit_length()
            tags = hashed.digest(count * _TAG_BYTES).hex("-", _TAG_BYTES).split("-")
            ends: Iterable[str] = map(add, _PLACES, tags)
            if locked & (locked + 1):
                ends = (end for i, end in enumerate(ends) if locked >> i & 1)
            receipts = list(map(text.__add__, ends))
        delivery.receipts = receipts
        if len(self.remembered) >= _REMEMBERED:
            self.remembered.clear()
        self.remembered[text] = delivery
        return receipts

    def _tags(self, head: bytes, count: int) -> str:
        hashed = self._hash.copy()
        hashed.update(head)
        return hashed.hexdigest(count * _TAG_BYTES)

    def batch_of(self, receipt: object) -> Delivery | None:
        """The delivery that a receipt belongs to, if it is remembered; nothing is checked."""
        return self.remembered.get(receipt[:HEAD_CHARS]) if type(receipt) is str else None

    def read(self, receipt: object) -> tuple[Delivery, int]:
        """A receipt's delivery and place in its row; `ReceiptIllegal`."""
        if type(receipt) is not str:
            raise ReceiptIllegal(
                f"the receipt is {shown(receipt)}; it must be the text that pop gave"
            )
        if len(receipt) != RECEIPT_CHARS:
            raise ReceiptIllegal(
                f"the receipt has {len(receipt)} characters, not {RECEIPT_CHARS}; pass it on as "
                "pop gave it"
            )
        text, place = receipt[:HEAD_CHARS], receipt[HEAD_CHARS:-_TAG_CHARS]
        try:
            head, i = bytes.fromhex(text), int(place, 16)
        except ValueError:
            raise _changed(receipt) from None
        # Both parsers take more than what `make` writes (capitals, spaces, signs).
        if head.hex() != text or _PLACES[i] != place:
            raise _changed(receipt)
        tags = self._tags(head, i + 1)
        if tags[i * _TAG_CHARS :] != receipt[-_TAG_CHARS:]:
            raise _changed(receipt)
        delivery = self.remembered.get(text)
        if delivery is None:
            *key, nonce = _HEAD.unpack(head)
            delivery = Delivery(LockKey(*key), nonce)
            if len(self.remembered) >= _REMEMBERED:
                self.remembered.clear()
            self.remembered[text] = delivery
        return delivery, i


def _changed(receipt: str) -> ReceiptIllegal:
    return ReceiptIllegal(
        f"the receipt {receipt[:16]}... was not made by this store, or was changed; pass it on as "
        "pop gave it"
    )


def open_receipts(families: Families) -> Receipts:
    """The receipts of a store, signed by its secret, which is made once."""
    found = families.get(META, RECEIPT_SECRET)
    if found is None:
        found = secrets.token_bytes(_SECRET_BYTES)
        batch = families.batch()
        batch.put(META, RECEIPT_SECRET, found)
        families.write(batch, sync=True)
    return Receipts(found)
