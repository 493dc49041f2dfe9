"""The proxy before engines that fail in every way; these are fakes, so that the failures are exact."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from ports import free_port
from servers import PROXY, Proxy

pytest.importorskip("aiohttp")
import prefill_decode_proxy  # noqa: E402
from aiohttp import web  # noqa: E402

EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Fake:
    """An engine. plan: what the next requests get, last one again and again: a status, or what `_answer` knows."""

    def __init__(self, loop, *plan):
        self.port, self.plan, self.seen = free_port(), list(plan) or [200], []
        self.url, self._loop = f"http://127.0.0.1:{self.port}", loop
        self.was_cancelled, self._go_on = threading.Event(), asyncio.Event()
        self.in_flight, self.most_in_flight = 0, 0
        self.call(self._start())

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self):
        application = web.Application()
        application.router.add_post("/{path:.*}", self._answer)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/health", self._health)
        self.runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def _models(self, _):
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _health(self, _):
        return web.Response()

    async def _answer(self, request):
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer_as_planned(request)
        finally:
            self.in_flight -= 1

    async def _answer_as_planned(self, request):
        body = await request.json()
        self.seen.append(body)
        what = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        if what == "hang":
            try:
                await self._go_on.wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
        if what == "pause":
            await asyncio.sleep(0.1)
            what = 200
        if what == "wait for four":
            while self.most_in_flight < 4:
                await asyncio.sleep(0.01)
            what = 200
        if what == "not json":
            return web.Response(text="<html>")
        if what == "close":
            request.transport.abort()
            return web.Response()
        if isinstance(what, int) and (what != 200 or not body.get("stream")):
            return web.json_response({"choices": [{"text": "a"}], "kv_transfer_params": {"cachalot_stored_tokens": 128}}
                                     if what == 200 else {"error": {"message": "no", "code": what}}, status=what)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if what == "error event":
            await response.write(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n' + DONE)
            return response
        if what == "close before an event":
            await response.write(EVENT[:9])
            request.transport.abort()
            return response
        await response.write(EVENT[:5])
        await asyncio.sleep(0)
        await response.write(EVENT[5:] + EVENT[:12])
        if what in ("close within an event", "hang within"):
            try:
                await asyncio.wait_for(self._go_on.wait(), 0.3 if what.startswith("close") else 60)
            except asyncio.TimeoutError:
                request.transport.abort()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
            return response
        await response.write(EVENT[12:] + DONE)
        return response


@pytest.fixture(scope="module")
def loop():
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(30)


@pytest.fixture
def fake(loop):
    made = []

    def start(*plan):
        made.append(Fake(loop, *plan))
        return made[-1]

    yield start
    for engine in made:
        engine.call(engine.runner.cleanup())


@pytest.fixture
def proxy(tmp_path):
    made = []

    def start(prefill, decode, *flags):
        made.append(Proxy(tmp_path / f"{len(made)}.log", [one.url for one in prefill], [one.url for one in decode],
                          *flags))
        made[-1].wait_ready()
        return made[-1]

    yield start
    for one in made:
        one.kill()


class Dead:
    url = "http://127.0.0.1:9"


def ask(proxy, is_streamed):
    return (proxy.stream if is_streamed else proxy.complete)("once")["text"]


def refused(call, *positional, **named):
    with pytest.raises(urllib.error.HTTPError) as raised:
        call(*positional, **named)
    return raised.value.code, json.load(raised.value)["error"]["message"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_prefill_gets_one_token_and_decode_hears_what_is_stored(proxy, fake, is_streamed):
    prefill, decode = fake(), fake()
    asked = {"prompt": "once", "max_tokens": 7, "min_tokens": 3, "n": 2, "temperature": 0.5, "stream": is_streamed,
             "kv_transfer_params": {"evil": 1}, **({"stream_options": {"include_usage": True}} if is_streamed else {})}
    with proxy([prefill], [decode]).send("/v1/completions", asked) as answer:
        text, timing = answer.read(), answer.headers["Server-Timing"]
    assert text == (EVENT + EVENT + DONE if is_streamed else text) and b'"a"' in text
    assert [part.split(";")[0] for part in timing.split(", ")] == ["queue", "body", "prefill", "decode"]
    assert prefill.seen == [{"model": "tiny", "prompt": "once", "max_tokens": 1, "n": 1, "temperature": 0.5,
                             "stream": False, "kv_transfer_params": {"do_remote_decode": True}}]
    assert decode.seen == [{"model": "tiny", **asked, "kv_transfer_params": {"cachalot_stored_tokens": 128}}]


def test_chat_is_prefilled_with_one_token(proxy, fake):
    prefill, decode = fake(), fake()
    proxy([prefill], [decode]).post("/v1/chat/completions", {"messages": [], "max_completion_tokens": 9})
    assert (prefill.seen[0]["max_tokens"], prefill.seen[0]["max_completion_tokens"]) == (1, 1)
    assert decode.seen[0]["max_completion_tokens"] == 9


def test_requests_go_to_each_engine_in_turn(proxy, fake):
    prefills, decodes = [fake(), fake()], [fake(), fake(), fake()]
    one = proxy(prefills, decodes)
    for _ in range(6):
        ask(one, False)
    assert [len(engine.seen) for engine in prefills + decodes] == [3, 3, 2, 2, 2]


@pytest.mark.parametrize("what", [500, 503, "close", "not json", "hang"])
def test_a_failed_prefill_engine_costs_time_only(proxy, fake, what):
    bad, decode = fake(what, 200), fake()
    one = proxy([bad], [decode], "--prefill-timeout", "1", "--rest", "1")
    assert ask(one, True) == "aa"
    assert "kv_transfer_params" not in decode.seen[0]
    assert ask(one, False) == "a"
    assert len(bad.seen) == 1  # it rests
    while len(bad.seen) == 1:
        ask(one, False)
    assert decode.seen[-1]["kv_transfer_params"]  # it was tried again, and works


def test_a_client_does_not_say_what_is_stored(proxy, fake):
    decode = fake()
    proxy([], [decode]).complete("once", kv_transfer_params={"cachalot_stored_tokens": 1 << 40})
    assert "kv_transfer_params" not in decode.seen[0]


def test_one_request_tries_an_engine_that_failed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(prefill_decode_proxy.time, "monotonic", lambda: now[0])
    engine = prefill_decode_proxy.Engine("http://a", 2.0)
    for rest_s in (2, 4, 8, 16, 32, 60, 60):
        engine.failed(OSError())
        now[0] += rest_s - 0.1
        assert engine.rests()
        now[0] += 0.2
        assert not engine.rests()
    with engine.asked(1):
        assert engine.rests()  # for the others
        engine.worked()
    assert not engine.rests()
    with engine.asked(2):
        assert not engine.rests()


def test_another_prefill_engine_is_tried(proxy, fake):
    good, decode = fake(), fake()
    assert ask(proxy([Dead, good], [decode]), True) == "aa"
    assert len(good.seen) == 1 and decode.seen[0]["kv_transfer_params"]


def test_a_refused_prefill_is_no_failure(proxy, fake):
    prefill, decode = fake(400), fake(400)
    one = proxy([prefill], [decode])
    for _ in range(2):
        assert refused(one.complete, "once") == (400, "no")
    assert len(prefill.seen) == 2 and len(decode.seen) == 2


@pytest.mark.parametrize("what", [500, "close", "error event", "close before an event", "hang"])
def test_before_its_first_byte_a_request_goes_to_another_decode_engine(proxy, fake, what):
    bad, good = fake(what), fake()
    one = proxy([], [bad, good], "--decode-timeout", "1", "--rest", "30")
    assert [ask(one, True) for _ in range(3)] == ["aa"] * 3
    assert len(bad.seen) == 1 and len(good.seen) == 3


@pytest.mark.parametrize("what", ["close within an event", "hang within"])
def test_after_its_first_byte_the_client_gets_one_error(proxy, fake, what):
    one = proxy([], [fake(what)], "--decode-timeout", "1")
    with one.send("/v1/completions", {"prompt": "once", "stream": True}) as answer:
        events = answer.read().split(b"\n\n")
    assert events[0] + b"\n\n" == EVENT and events[2:] == [b"data: [DONE]", b""]
    assert json.loads(events[1][len(b"data: "):])["error"]["code"] == 502


@pytest.mark.parametrize("plan", [[500], ["close"], ["error event"]])
def test_without_any_decode_engine_the_client_gets_502(proxy, fake, plan):
    assert refused(proxy([], [fake(*plan), Dead]).stream, "once") == (502, "no decode engine answers")


@pytest.mark.parametrize("is_prefill, what", [(True, "hang"), (False, "hang"), (False, "hang within")])
def test_a_client_that_disconnects_cancels_its_request(proxy, fake, is_prefill, what):
    bad, good = fake(what), fake()
    one = proxy([bad] if is_prefill else [], [good if is_prefill else bad])
    body = b'{"prompt": "once", "stream": true}'
    client = socket.create_connection(("127.0.0.1", int(one.url.rsplit(":", 1)[1])), timeout=30)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while not bad.seen:
        assert one.process.poll() is None
    if what == "hang within":
        client.recv(1)
    client.close()
    assert bad.was_cancelled.wait(30)
    assert good.seen == []


@pytest.mark.parametrize("body, status, message", [
    (b"{", 400, "expected a JSON object"), (b"[1]", 400, "it is a list"), (b"\xff", 400, "expected a JSON object"),
    (b"[" * 100000, 400, "expected a JSON object"), (b"{" + b" " * 5000000 + b"}", 413, "more than 4096000 bytes")])
def test_a_wrong_body_is_refused(proxy, fake, body, status, message):
    engine = fake()
    one = proxy([engine], [engine], "--max-body-bytes", "4096000")
    request = urllib.request.Request(one.url + "/v1/completions", body)
    code, said = refused(urllib.request.urlopen, request, timeout=30)
    assert code == status and message in said
    assert engine.seen == []


@pytest.mark.parametrize("places, most", [(1, 1), (4, 4)])
def test_requests_wait_for_a_place(proxy, fake, places, most):
    engine = fake("wait for four" if most == 4 else "pause")
    one = proxy([], [engine], "--max-requests", str(places))
    threads = [threading.Thread(target=one.complete, args=("once",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(engine.seen) == 4 and engine.most_in_flight == most


def test_a_body_nested_as_deeply_as_python_can_ends_nothing(proxy, fake):
    one = proxy([fake()], [fake()], "--rest", "0.01")
    for depth in range(900, 1000, 2):
        request = urllib.request.Request(one.url + "/v1/completions", b'{"a":' * depth + b"1" + b"}" * depth)
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            assert "error" in json.load(error) and error.code != 500
    assert "Traceback" not in one.log.read_text()
    assert ask(one, False) == "a"


def test_models_and_health(proxy, fake):
    one = proxy([Dead], [Dead, fake()])
    assert one.get("/v1/models")["data"][0]["id"] == "tiny"
    assert [engine["healthy"] for engine in one.get("/health")["engines"]] == [False, False, True]


@pytest.mark.parametrize("flags, message", [
    ([], "--decode"), (["--decode", "a:1"], "a:1: expected a URL"), (["--decode", "http://a", "--rest", "0"], "above 0"),
    (["--decode", "http://a", "--max-requests", "x"], "above 0")])
def test_a_wrong_command_line_is_refused(flags, message):
    done = subprocess.run([sys.executable, str(PROXY), *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr
