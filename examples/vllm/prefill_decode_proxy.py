#!/usr/bin/env python3
"""Prefill and decode apart: an OpenAI-compatible proxy before vLLM engines that share a pool, or hand KV over.

One engine computes the prompt and stores or offers its blocks; another one takes them and writes the answer. The engines
do not know each other. A prompt whose blocks cannot be taken is computed by the decode engine.

    engine A  --kv-transfer-config '{"kv_connector": "CachalotConnector", "kv_role": "kv_producer", ...}'
    engine B  --kv-transfer-config '{"kv_connector": "CachalotConnector", "kv_role": "kv_consumer", ...}'
    prefill_decode_proxy.py --prefill http://a:8000 --decode http://b:8000 --port 8080

POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /health, GET /steps (JSON), GET /steps.txt.
Needs aiohttp, which vLLM has. Of each request, the log and the header Server-Timing say how long it waited here, was
prefilled, and waited for its first byte from the decode engine; /steps says which steps its TTFT and TPOT are made of
(request_steps.py).
"""

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import time
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from first_token import FirstToken, can_go_on
from request_steps import RequestSteps, StepTable

log = logging.getLogger("proxy")

_BODY_S = 30.0  # to read a request's body
_CONNECT_S = 10.0
_PREFILL_CONNECT_S = 3.0
_HEALTH_S = 3.0
_LONGEST_REST_S = 60.0
#: Shorter than vLLM's 5 s, so that no request is sent on a connection that its engine closes.
_KEEP_ALIVE_S = 2.0
_PASSED_ON = ("Authorization", "X-Request-Id", "traceparent")
#: Of no use for a prefill, or refused with one token.
_NOT_FOR_PREFILL = ("stream_options", "min_tokens", "best_of", "use_beam_search", "echo", "logprobs", "top_logprobs",
                    "prompt_logprobs", "response_format", "structured_outputs")


class EngineError(Exception):
    """An engine that is dead, slow or answers a server error. Another one may be right."""


class Engine:
    def __init__(self, url: str, rest_s: float) -> None:
        self.url = url
        self.in_flight = 0
        self.turn = 0  # of its last request
        self._rest_s, self._failures, self._rests_until = rest_s, 0, 0.0

    def rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def worked(self) -> None:
        self._failures, self._rests_until = 0, 0.0

    def failed(self, error: Exception) -> None:
        rest_s = min(self._rest_s * 2 ** min(self._failures, 16), _LONGEST_REST_S)
        self._failures += 1
        self._rests_until = time.monotonic() + rest_s
        log.warning("%s failed, next try in %.0f s: %s", self.url, rest_s, error or type(error).__name__)

    @contextlib.contextmanager
    def asked(self, turn: int) -> Iterator[None]:
        if self._failures:  # one request tries it; the others go elsewhere meanwhile
            self._rests_until = time.monotonic() + self._rest_s
        self.in_flight, self.turn = self.in_flight + 1, turn
        try:
            yield
        finally:
            self.in_flight -= 1


class Fleet:
    """Engines of one role. The next request goes to the one with the fewest in flight, of equals to each in turn."""

    def __init__(self, urls: List[str], rest_s: float) -> None:
        self.engines = [Engine(url, rest_s) for url in urls]
        self._turn = 0

    def choose(self, tried: List[Engine], also_resting: bool) -> Optional[Engine]:
        others = [engine for engine in self.engines if engine not in tried]
        awake = [engine for engine in others if not engine.rests()]
        return min(awake or (others if also_resting else []),
                   key=lambda engine: (engine.in_flight, engine.turn), default=None)

    def asking(self, engine: Engine) -> Any:
        self._turn += 1
        return engine.asked(self._turn)


class Trace:
    """What a request waited for, in milliseconds."""

    def __init__(self) -> None:
        self._mark = time.monotonic()
        self._parts: List[str] = []

    def end(self, part: str, where: str = "") -> None:
        now = time.monotonic()
        text = f"{part};dur={(now - self._mark) * 1000:.1f}"
        self._parts.append(f'{text};desc="{where}"' if where else text)
        self._mark = now

    def __str__(self) -> str:
        return ", ".join(self._parts)


def error_body(message: str, status: int) -> Dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_response(message: str, status: int, trace: Optional[Trace] = None) -> web.Response:
    headers = {"Server-Timing": str(trace)} if trace else None
    return web.json_response(error_body(message, status), status=status, headers=headers)


def is_server_error(event: bytes) -> bool:
    """Whether vLLM's first event is an error of the engine: the status was sent before."""
    if not event.startswith(b'data: {"error"'):
        return False
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return int(json.loads(event[len(b"data: "):].split(b"\n", 1)[0])["error"]["code"]) >= 500
    return False


async def read_events(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole events: a client never gets half of one. Raises EngineError."""
    rest = b""
    try:
        async for chunk in upstream.content.iter_any():
            whole, end, rest = (rest + chunk).rpartition(b"\n\n")
            if whole:
                yield whole + end
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise EngineError(f"its answer ended early: {error or type(error).__name__}") from error
    if rest:
        raise EngineError("its answer ended within an event")


def _asks_for_usage(body: Dict[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class Answer:
    """Of a decode engine that has begun to answer."""

    def __init__(self, engine: Engine, upstream: aiohttp.ClientResponse, first: bytes,
                 events: Optional[AsyncIterator[bytes]]) -> None:
        self.engine, self.upstream, self.first, self.events = engine, upstream, first, events


class Events:
    """The events of a decode engine on their way to the client. Reads what they say of usage and times."""

    def __init__(self, steps: RequestSteps, hides_usage: bool, first: Optional[FirstToken]) -> None:
        """hides_usage: the proxy has asked for the event of usage, the client has not."""
        self._steps, self._hides_usage, self._first = steps, hides_usage, first

    def passed(self, events: bytes) -> bytes:
        """events: whole ones."""
        if self._first is None and b'"usage"' not in events:
            return events
        return b"".join(self._one(event + b"\n\n") for event in events.split(b"\n\n") if event)

    def _one(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {") or self._first is None and b'"usage"' not in event:
            return event
        try:
            said = json.loads(event[len(b"data: "):])
            if self._first is not None and "choices" in said:  # not an error
                said = self._first.later(said)
                event = f"data: {json.dumps(said)}\n\n".encode()
            self._steps.said(said)
            return b"" if self._hides_usage and said.get("usage") and not said.get("choices") else event
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return event

    def whole(self, answer: bytes) -> bytes:
        """The same for an answer that is not streamed."""
        try:
            said = json.loads(answer)
            if self._first is not None:
                said = self._first.whole(said)
                answer = json.dumps(said).encode()
            self._steps.said(said)
            return answer
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            if self._first is not None:
                raise EngineError("an answer of another form") from None
            return answer


class Proxy:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.table = StepTable()
        self._prefills = Fleet(options.prefill, options.rest)
        self._decodes = Fleet(options.decode, options.rest)
        self._places = asyncio.Semaphore(options.max_requests)
        self._session: aiohttp.ClientSession

    def application(self) -> web.Application:
        application = web.Application(client_max_size=self._options.max_body_bytes)
        application.router.add_post("/v1/completions", self.complete)
        application.router.add_post("/v1/chat/completions", self.complete)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/health", self.health)
        application.router.add_get("/steps", self.steps)
        application.router.add_get("/steps.txt", self.steps)
        application.cleanup_ctx.append(self._connected)
        return application

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            yield

    # --- Requests ----------------------------------------------------------------------------------

    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._complete(request)
        except RecursionError:  # before the answer has begun
            return error_response("the request's body: expected a JSON object, it is nested too deeply", 400)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        trace, steps = Trace(), RequestSteps(request.path)
        async with self._places:
            trace.end("queue")
            try:
                body = await self._body_of(request)
            except web.HTTPRequestEntityTooLarge:
                return error_response(f"the request has more than {self._options.max_body_bytes} bytes", 413)
            except asyncio.TimeoutError:
                return error_response(f"the request's body did not come within {_BODY_S:.0f} s", 408)
            except ValueError as error:
                return error_response(f"the request's body: expected a JSON object: {error}", 400)
            headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
            trace.end("body")
            steps.waited()
            body.pop("kv_transfer_params", None)  # the engines' own words
            wants_first = self._options.first_token == "prefill" and can_go_on(request.path, body)
            params, first = await self._prefill(request.path, body, headers, trace, steps, wants_first)
            if first is not None:
                steps.record["first_token"] = "prefill"
                body = first.rest_of()
            if params:
                body["kv_transfer_params"] = params
            response = await self._decode(request, body, headers, trace, steps, first)
        if response.status == 200:
            self.table.add(steps.end())
        log.info("%s %s %d: %s", request.method, request.path, response.status, trace)
        return response

    async def _body_of(self, request: web.Request) -> Dict[str, Any]:
        body = json.loads(await asyncio.wait_for(request.read(), _BODY_S))
        if not isinstance(body, dict):
            raise ValueError(f"it is a {type(body).__name__}")
        return body

    async def _prefill(self, path: str, body: Dict[str, Any], headers: Dict[str, str], trace: Trace,
                       steps: RequestSteps,
                       wants_first: bool) -> Tuple[Optional[Dict[str, Any]], Optional[FirstToken]]:
        """Returns what the decode engine is told of the blocks, and the first token if it is wanted and there. A
        failure costs time only."""
        short = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
        short.update(max_tokens=1, n=1, stream=False, kv_transfer_params={"do_remote_decode": True})
        if "max_completion_tokens" in body:
            short["max_completion_tokens"] = 1
        if wants_first:
            short.update(return_token_ids=True)
            short["kv_transfer_params"]["first_token"] = "prefill"
        until = time.monotonic() + self._options.prefill_timeout
        tried: List[Engine] = []
        while (left := until - time.monotonic()) > 0:
            engine = self._prefills.choose(tried, also_resting=False)
            if engine is None:
                break
            tried.append(engine)
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=_PREFILL_CONNECT_S)
            try:
                with self._prefills.asking(engine):
                    async with self._session.post(engine.url + path, json=short, headers=headers,
                                                  timeout=timeout) as answer:
                        text = await answer.read()
                if answer.status >= 500:
                    raise EngineError(f"HTTP {answer.status}")
                said = json.loads(text) if answer.status == 200 else {}
                params = said.get("kv_transfer_params")
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, EngineError, ValueError,
                    AttributeError) as error:
                engine.failed(error)
                continue
            engine.worked()
            trace.end("prefill", engine.url)
            steps.prefilled(engine.url)
            return params if isinstance(params, dict) else None, FirstToken.of(said, body) if wants_first else None
        trace.end("prefill", "none")
        steps.prefilled(None)
        return None, None

    async def _decode(self, request: web.Request, body: Dict[str, Any], headers: Dict[str, str], trace: Trace,
                      steps: RequestSteps, first: Optional[FirstToken]) -> web.StreamResponse:
        is_streamed, hides_usage = bool(body.get("stream")), False
        if is_streamed and not _asks_for_usage(body):
            options = body.get("stream_options")
            if options is None or isinstance(options, dict):  # else the engine refuses it
                body["stream_options"], hides_usage = {**(options or {}), "include_usage": True}, True
        response: Optional[web.StreamResponse] = None
        if first is not None and (first.is_all or is_streamed):
            response = await self._send_first(request, first, is_streamed, trace)
            if first.is_all:
                return response
        async with contextlib.AsyncExitStack() as stack:
            answer = await self._first_answer(stack, "POST", request.path, headers, body)
            if answer is None and response is None:
                return error_response("no decode engine answers", 502, trace)
            if answer is None:
                return await self._end_with_error(response, "no decode engine answers")
            trace.end("decode", answer.engine.url)
            steps.first_byte(answer.engine.url, answer.events is not None)
            return await self._pass_on(request, answer, trace, Events(steps, hides_usage, first), response)

    async def _send_first(self, request: web.Request, first: FirstToken, is_streamed: bool,
                          trace: Trace) -> web.StreamResponse:
        """The first token, before any decode engine is asked."""
        if not is_streamed:
            return web.json_response(first.only(), headers={"Server-Timing": str(trace)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8",
                                               "Server-Timing": str(trace)})
        await response.prepare(request)
        await response.write(first.event() + (first.end_events() if first.is_all else b""))
        if first.is_all:
            await response.write_eof()
        return response

    async def _end_with_error(self, response: web.StreamResponse, message: str) -> web.StreamResponse:
        await response.write(f"data: {json.dumps(error_body(message, 502))}\n\ndata: [DONE]\n\n".encode())
        await response.write_eof()
        return response

    async def _first_answer(self, stack: contextlib.AsyncExitStack, method: str, path: str, headers: Dict[str, str],
                            body: Optional[Dict[str, Any]] = None) -> Optional[Answer]:
        """Until its first byte, a request may go to another engine."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._options.decode_timeout)
        tried: List[Engine] = []
        while (engine := self._decodes.choose(tried, also_resting=True)) is not None:
            tried.append(engine)
            try:
                stack.enter_context(self._decodes.asking(engine))
                upstream = await stack.enter_async_context(
                    self._session.request(method, engine.url + path, json=body, headers=headers, timeout=timeout))
                if upstream.status >= 500:
                    raise EngineError(f"HTTP {upstream.status}")
                events = read_events(upstream) if upstream.content_type == "text/event-stream" else None
                first = await anext(events, b"") if events else await upstream.read()
                if events and (not first or is_server_error(first)):
                    raise EngineError(first.decode(errors="replace").strip() or "an empty answer")
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, EngineError) as error:
                engine.failed(error)
                await stack.aclose()
                continue
            engine.worked()
            return Answer(engine, upstream, first, events)
        return None

    async def _pass_on(self, request: web.Request, answer: Answer, trace: Trace, events: Events,
                       response: Optional[web.StreamResponse] = None) -> web.StreamResponse:
        """response: it has begun, with the first token."""
        headers = {"Content-Type": answer.upstream.headers.get("Content-Type", "application/json"),
                   "Server-Timing": str(trace)}
        if answer.events is None:
            try:
                body = events.whole(answer.first) if answer.upstream.status == 200 else answer.first
            except EngineError as error:
                answer.engine.failed(error)
                return error_response("the decode engine failed within its answer", 502, trace)
            if response is None:
                return web.Response(status=answer.upstream.status, headers=headers, body=body)
            # The client has the first token, so a refusal is an event.
            return await self._end_with_error(response, "the decode engine refused the request: "
                                              + answer.first.decode(errors="replace"))
        if response is None:
            response = web.StreamResponse(status=answer.upstream.status, headers=headers)
            await response.prepare(request)
        try:
            await response.write(events.passed(answer.first))
            async for more in answer.events:
                await response.write(events.passed(more))
        except EngineError as error:
            answer.engine.failed(error)
            return await self._end_with_error(response, "the decode engine failed within its answer")
        await response.write_eof()
        trace.end("rest")
        return response

    async def models(self, request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        async with contextlib.AsyncExitStack() as stack:
            answer = await self._first_answer(stack, "GET", request.path, headers)
            if answer is None:
                return error_response("no decode engine answers", 502)
            return await self._pass_on(request, answer, Trace(), Events(RequestSteps(request.path), False, None))

    async def steps(self, request: web.Request) -> web.Response:
        if request.path.endswith(".txt"):
            return web.Response(text=self.table.text())
        return web.json_response(self.table.json())

    async def health(self, _: web.Request) -> web.Response:
        """200 while a decode engine is healthy: prefill engines only save time."""
        async def is_healthy(engine: Engine) -> bool:
            try:
                async with self._session.get(engine.url + "/health",
                                             timeout=aiohttp.ClientTimeout(total=_HEALTH_S)) as answer:
                    return answer.status == 200
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                return False

        engines = self._prefills.engines + self._decodes.engines
        healthy = await asyncio.gather(*map(is_healthy, engines))
        states = [{"url": engine.url, "role": role, "healthy": state, "in_flight": engine.in_flight}
                  for engine, role, state in
                  zip(engines, ["prefill"] * len(self._prefills.engines) + ["decode"] * len(engines), healthy)]
        is_up = any(state["healthy"] for state in states if state["role"] == "decode")
        return web.json_response({"engines": states}, status=200 if is_up else 503)


# --- The command line ------------------------------------------------------------------------------


def url_of(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text}: expected a URL as http://host:port")
    return text.rstrip("/")


def positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < 2**53:
            raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
        return value

    return parse


def options_of(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", nargs="*", type=url_of, default=[], metavar="URL", help="engines that compute")
    parser.add_argument("--decode", nargs="+", type=url_of, required=True, metavar="URL", help="engines that answer")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=positive(int), default=8080)
    parser.add_argument("--first-token", choices=("prefill", "decode"), default="decode",
                        help="which engine's first token the client gets; see first_token.py (default: decode)")
    parser.add_argument("--prefill-timeout", type=positive(float), default=30.0, metavar="S",
                        help="of all tries of one request; then the decode engine computes (default: 30)")
    parser.add_argument("--decode-timeout", type=positive(float), default=300.0, metavar="S",
                        help="a decode engine that sends nothing for so long has failed (default: 300)")
    parser.add_argument("--rest", type=positive(float), default=2.0, metavar="S",
                        help="an engine that failed gets no request for so long, twice as long each time (default: 2)")
    parser.add_argument("--max-requests", type=positive(int), default=256, metavar="N",
                        help="requests in the engines; others wait (default: 256)")
    parser.add_argument("--max-body-bytes", type=positive(int), default=8 << 20, metavar="N",
                        help="of a request (default: 8 MiB)")
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    proxy = Proxy(options)

    async def start() -> web.Application:
        return proxy.application()

    # Without the cancellation, a client that disconnects would leave its request in the engine.
    web.run_app(start(), host=options.host, port=options.port, handler_cancellation=True, access_log=None,
                print=lambda *_: log.info("ready at http://%s:%d", options.host, options.port))
    log.info("steps, in ms (request_steps.py):\n%s", proxy.table.text())


if __name__ == "__main__":
    main()
