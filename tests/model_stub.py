"""A chat provider on 127.0.0.1 that answers by a script, in OpenAI's dialect or Anthropic's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """An object, in whichever form the request asks for: by a tool, by a schema, or as text."""

    value: Any


@dataclass
class Text:
    """Words, whatever was asked for."""

    text: str
    finish: str = "stop"


@dataclass
class Refusal:
    """The model declines, with a status of 200."""

    text: str = "I cannot help with that."


@dataclass
class Status:
    """An error of the provider."""

    code: int
    message: str = "scripted"
    kind: str = "scripted"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Raw:
    """These bytes as the body, with a status of 200."""

    body: bytes


@dataclass
class Cut:
    """The connection is closed in the middle of the body."""


@dataclass
class Slow:
    """The answer takes its time."""

    seconds: float
    value: Any


class Stub:
    """What a test sees of the provider: its address, its script, and what it was sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []

    def reply(self, *replies: Any) -> None:
        """Answer so, one after the other; the last one for ever."""
        self.script = list(replies)

    def next(self) -> Any:
        """The reply that is due."""
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def prompts(self) -> list[str]:
        """All text of each request."""
        return [json.dumps(body, ensure_ascii=False) for body in self.requests]


def openai_body(asked: dict[str, Any], reply: Any) -> dict[str, Any]:
    """A chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    finish = "stop"
    if isinstance(reply, Text):
        message["content"], finish = reply.text, reply.finish
    elif isinstance(reply, Refusal):
        message["refusal"] = reply.text
    elif asked.get("tools"):
        name = asked["tools"][0]["function"]["name"]
        call = {"name": name, "arguments": json.dumps(reply.value)}
        message["tool_calls"] = [{"id": "t1", "type": "function", "function": call}]
        finish = "tool_calls"
    else:
        message["content"] = json.dumps(reply.value)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
    }


def anthropic_body(asked: dict[str, Any], reply: Any) -> dict[str, Any]:
    """A message."""
    content: list[dict[str, Any]]
    stop = "end_turn"
    if isinstance(reply, Text):
        content = [{"type": "text", "text": reply.text}] if reply.text else []
    elif isinstance(reply, Refusal):
        content, stop = [{"type": "text", "text": reply.text}], "refusal"
    elif asked.get("tools"):
        name = asked["tools"][0]["name"]
        content = [{"type": "tool_use", "id": "t1", "name": name, "input": reply.value}]
        stop = "tool_use"
    else:
        content = [{"type": "text", "text": json.dumps(reply.value)}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 7},
    }


def error_body(reply: Status) -> dict[str, Any]:
    """An error; both dialects find what they look for in it."""
    error = {"message": reply.message, "type": reply.kind, "code": reply.kind}
    return {"type": "error", "error": error}


@contextmanager
def serve() -> Iterator[Stub]:
    """Run a provider for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        # HTTP/1.0, the default: each connection ends with its answer, as clients keep theirs
        # open for longer than the event loop of a test.

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            stub.requests.append(asked)
            reply = stub.next()
            if isinstance(reply, Slow):
                time.sleep(reply.seconds)
                reply = reply.value
            status, headers = 200, {}
            if isinstance(reply, Raw):
                data = reply.body
            elif isinstance(reply, Status):
                status, headers = reply.code, reply.headers
                data = json.dumps(error_body(reply)).encode()
            else:
                body = anthropic_body if self.path.endswith("/messages") else openai_body
                data = json.dumps(
                    body(asked, Text("…") if isinstance(reply, Cut) else reply)
                ).encode()
            try:
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if isinstance(reply, Cut) else data)
            except ConnectionError:
                pass  # the client did not wait

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = Stub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
