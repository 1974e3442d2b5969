"""A store's receipts: the core makes and reads them by the secret that the store keeps.

Invariant: the secret is made once, and is on the disk before the first receipt is made.
"""

from __future__ import annotations

import secrets
from typing import Final

from kvstore.core.popping.receipts import Receipts
from kvstore.index.families import Families
from kvstore.index.keys import META, RECEIPT_SECRET

_SECRET_BYTES: Final = 32


def open_receipts(families: Families) -> Receipts:
    """The receipts of a store, signed by its secret, which is made once."""
    found = families.get(META, RECEIPT_SECRET)
    if found is None:
        found = secrets.token_bytes(_SECRET_BYTES)
        batch = families.batch()
        batch.put(META, RECEIPT_SECRET, found)
        families.write(batch, sync=True)
    return Receipts(found)
