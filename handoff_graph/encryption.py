"""Keeping the journal as secret as the checkpoints are."""

from __future__ import annotations

import base64
import os
from typing import Any

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from handoff_graph.codec import PLAIN, Codec

__all__ = ["codec_from_environment", "codec_of"]


def codec_of(serde: Any) -> Codec:
    """How the journal beside checkpoints of this serializer is stored.

    Args:
        serde: the inner saver's serializer. With an `EncryptedSerializer` the journal is
            encrypted with its cipher.
    """
    if not isinstance(serde, EncryptedSerializer):
        return PLAIN

    def dumps(text: str) -> str:
        kind, data = serde.dumps_typed(text)
        return f"{kind}:{base64.b64encode(data).decode()}"

    def loads(stored: str) -> str:
        kind, _, data = stored.rpartition(":")
        return str(serde.loads_typed((kind, base64.b64decode(data))))

    return Codec(dumps, loads)


def codec_from_environment() -> Codec:
    """The codec for text that was encrypted with LangGraph's key from the environment.

    Raises:
        ValueError: `LANGGRAPH_AES_KEY` is not set, or is another one.
    """
    if not os.environ.get("LANGGRAPH_AES_KEY"):
        raise ValueError("it is encrypted: set LANGGRAPH_AES_KEY to read it")
    return codec_of(EncryptedSerializer.from_pycryptodome_aes())
