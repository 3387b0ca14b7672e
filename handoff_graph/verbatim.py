"""A serializer for whoever moves checkpoints about without the program that wrote them.

The `handoff` command prunes and copies databases whose states hold objects of classes that are
not installed where it runs. What LangGraph's own serializer cannot rebuild there it drops, or
turns into plain data; here such a value stays the bytes it is.
"""

from __future__ import annotations

import os
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import (
    EXT_DELTA_SNAPSHOT,
    EXT_NUMPY_ARRAY,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

__all__ = ["VerbatimSerializer", "verbatim_serializer"]

KEY_VARIABLE = "LANGGRAPH_AES_KEY"
"""Where LangGraph's `EncryptedSerializer` looks for its key."""


def verbatim_serializer() -> SerializerProtocol:
    """The serializer for this environment: encrypted, if the key for it is set."""
    plain = VerbatimSerializer()
    if os.environ.get(KEY_VARIABLE):
        return EncryptedSerializer.from_pycryptodome_aes(serde=plain)
    return plain


class VerbatimSerializer(JsonPlusSerializer):
    """Rebuilds messages and the like, and leaves objects of any other class packed.

    Example:
        >>> packed = ("msgpack", ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(["app", "X"]))))
        >>> serializer = VerbatimSerializer()
        >>> serializer.dumps_typed(serializer.loads_typed(packed)) == packed
        True
    """

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._rebuild = self._unpack_ext_hook
        self._unpack_ext_hook = self._hook

    def _hook(self, code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(self.loads_typed(("msgpack", data)))
        if _is_known(code, data):
            return self._rebuild(code, data)
        return ormsgpack.Ext(code, data)


def _is_known(code: int, data: bytes) -> bool:
    """Whether an object, and all that is in it, is of classes that LangGraph rebuilds."""
    inside: list[bool] = []

    def look(inner: int, packed: bytes) -> None:
        inside.append(_is_known(inner, packed))

    parts = ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
    if code in (EXT_NUMPY_ARRAY, EXT_DELTA_SNAPSHOT):
        return False
    return all(inside) and tuple(parts[:2]) in SAFE_MSGPACK_TYPES
