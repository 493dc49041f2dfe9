"""The proxy's table of steps, and the first token from the prefill engine, before engines that only count."""

import asyncio
import json

import pytest
from test_proxy import Dead, Fake, fake, loop, proxy, refused  # noqa: F401

pytest.importorskip("aiohttp")
import request_steps  # noqa: E402
from aiohttp import web  # noqa: E402
from first_token import FirstToken, can_go_on  # noqa: E402

END = 900  # the token that ends an answer
QUEUE_MS, FIRST_MS, REST_MS = 3.0, 2.0, 1.0


class Counting(Fake):
    """An engine whose next token is the last one plus 1. has_metrics: it says how long it took."""

    has_metrics, refuses = True, False

    def text_of(self, token):
        return "" if token == END else f" {token}"

    async def _answer_as_planned(self, request):
        body = await request.json()
        self.seen.append(body)
        if self.refuses:
            return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)
        prompt, limit = body["prompt"], body.get("max_tokens", 16)
        prompt = [ord(one) for one in prompt] if isinstance(prompt, str) else prompt
        tokens = []
        while len(tokens) < limit and tokens[-1:] != [END]:
            tokens.append((tokens or prompt)[-1] + 1)
        reason = "stop" if tokens[-1] == END else "length"
        head = {"id": f"cmpl-{self.port}", "object": "text_completion", "created": self.port, "model": "tiny"}
        ids = bool(body.get("return_token_ids"))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens),
                 "total_tokens": len(prompt) + len(tokens), "prompt_tokens_details": {"cached_tokens": 2}}
        more = {"metrics": {"queue_time_ms": QUEUE_MS, "time_to_first_token_ms": FIRST_MS,
                            "generation_time_ms": REST_MS}} if self.has_metrics else {}
        params = {"kv_transfer_params": {"reference": 1}} if body.get("kv_transfer_params", {}).get("do_remote_decode") \
            else {}
        if not body.get("stream"):
            choice = {"index": 0, "text": "".join(map(self.text_of, tokens)), "finish_reason": reason,
                      "token_ids": tokens if ids else None, "prompt_token_ids": prompt if ids else None}
            return web.json_response({**head, "choices": [choice], "usage": usage, **params, **more})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for i, token in enumerate(tokens):
            choice = {"index": 0, "text": self.text_of(token),
                      "finish_reason": reason if i + 1 == len(tokens) else None,
                      **({"token_ids": [token]} if ids else {}), **({"prompt_token_ids": prompt} if ids and not i else {})}
            await response.write(f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode())
            await asyncio.sleep(0)
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(f"data: {json.dumps({**head, 'choices': [], 'usage': usage, **more})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
def counting(loop):  # noqa: F811
    made = []

    def start(**attributes):
        made.append(Counting(loop))
        for name, value in attributes.items():
            setattr(made[-1], name, value)
        return made[-1]

    yield start
    for engine in made:
        engine.call(engine.runner.cleanup())


def events_of(proxy, body):  # noqa: F811
    with proxy.send("/v1/completions", {**body, "stream": True}) as answer:
        return [json.loads(event[6:]) for event in answer.read().split(b"\n\n") if event.startswith(b"data: {")]


def seen_by_client(proxy, body):  # noqa: F811
    """Of a streamed and of a whole answer: all that does not depend on the engine."""
    events = events_of(proxy, body)
    choices = [event["choices"][0] for event in events if event["choices"]]
    whole = proxy.post("/v1/completions", body)
    return {"text": "".join(choice["text"] for choice in choices), "reason": choices[-1]["finish_reason"],
            "tokens": sum((choice.get("token_ids") or [] for choice in choices), []),
            "prompt": [choice.get("prompt_token_ids") for choice in choices][0], "count": len(choices),
            "usage": [event["usage"] for event in events if event.get("usage")],
            "ids": len({event["id"] for event in events}),
            "whole": {name: whole["choices"][0].get(name) for name in ("text", "finish_reason", "token_ids",
                                                                      "prompt_token_ids")},
            "whole_usage": whole["usage"]}


BODIES = [{"prompt": "abc", "max_tokens": 5}, {"prompt": "abc"}, {"prompt": [7, 8], "max_tokens": 2, "return_token_ids": True},
          {"prompt": "a", "stream_options": {"include_usage": True}}, {"prompt": [END - 4], "max_tokens": 9},
          {"prompt": [END - 1], "max_tokens": 9, "return_token_ids": True, "stream_options": {"include_usage": True}},
          {"prompt": [END - 1]}, {"prompt": [5], "max_tokens": 1}, {"prompt": [5], "logprobs": 1}]


@pytest.mark.parametrize("body", BODIES, ids=[json.dumps(body) for body in BODIES])
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_the_client_sees_what_one_engine_says(proxy, counting, body, where):  # noqa: F811
    alone = seen_by_client(proxy([], [counting()]), body)
    apart = seen_by_client(proxy([counting()], [counting()], "--first-token", where), body)
    assert apart == alone


def test_the_decode_engine_goes_on_after_the_first_token(proxy, counting):  # noqa: F811
    prefill, decode = counting(), counting()
    one = proxy([prefill], [decode], "--first-token", "prefill")
    one.complete([1, 2, 3], max_tokens=5)
    assert prefill.seen[0]["kv_transfer_params"] == {"do_remote_decode": True, "first_token": "prefill"}
    assert decode.seen[0]["prompt"] == [1, 2, 3, 4] and decode.seen[0]["max_tokens"] == 4
    assert decode.seen[0]["kv_transfer_params"] == {"reference": 1}
    one.complete([END - 1])  # the first token ends it
    assert len(prefill.seen) == 2 and len(decode.seen) == 1
    one.post("/v1/chat/completions", {"prompt": [1], "max_tokens": 3})
    assert prefill.seen[-1]["kv_transfer_params"] == {"do_remote_decode": True} and decode.seen[-1]["prompt"] == [1]


def test_without_a_prefill_engine_decode_computes_the_first_token(proxy, counting):  # noqa: F811
    decode = counting()
    one = proxy([Dead], [decode], "--first-token", "prefill")
    assert one.stream([1, 2], max_tokens=3, return_token_ids=True)["tokens"] == [3, 4, 5]
    assert decode.seen[0]["prompt"] == [1, 2]
    assert one.get("/steps")["requests"][0]["first_token"] == "decode"


def test_after_the_first_token_a_failure_is_one_error_event(proxy, counting, fake):  # noqa: F811
    for decode, text in ((fake("close"), "no decode engine answers"), (counting(refuses=True), "too long")):
        one = proxy([counting()], [decode], "--first-token", "prefill")
        events = events_of(one, {"prompt": [1, 2]})
        assert events[0]["choices"][0]["text"] == " 3" and text in events[1]["error"]["message"] and len(events) == 2
    assert refused(one.complete, [1, 2]) == (400, "too long")


@pytest.mark.parametrize("more", [
    {"n": 2}, {"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": True}, {"prompt": ["a", "b"]}, {"prompt": []},
    {"prompt": [[1], [2]]}, {"prompt": [True]}, {"logprobs": 0}, {"stop": "x"}, {"seed": 1}, {"presence_penalty": 1},
    {"min_tokens": 2}, {"response_format": {}}, {"echo": True}, {"stream_options": {"continuous_usage_stats": True}},
    {"stream_options": 3}, {"truncate_prompt_tokens": 1}])
def test_what_needs_the_first_token_at_decode(more):
    body = {"prompt": "a", "max_tokens": 4, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert can_go_on("/v1/completions", body) and not can_go_on("/v1/chat/completions", body)
    assert not can_go_on("/v1/completions", {**body, **more})


def test_half_a_character_is_no_first_token():
    choice = {"text": " a", "finish_reason": "length", "token_ids": [4], "prompt_token_ids": [1]}

    def first(**more):
        return FirstToken.of({"id": "a", "choices": [{**choice, **more}]}, {})
    assert first() is not None and first(text="", finish_reason="stop") is not None
    for more in ({"text": "\ufffd"}, {"text": ""}, {"token_ids": None}, {"token_ids": [1, 2]}, {"prompt_token_ids": []}):
        assert first(**more) is None
    for said in (None, [], {}, {"choices": []}, {"choices": [1]}, {"choices": [choice]}):
        assert FirstToken.of(said, {}) is None


# --- Steps -------------------------------------------------------------------------------------------


def steps_of(monkeypatch, first_token, is_streamed, metrics, tokens=5):
    """Of a request with 1 ms before the prefill, 20 ms of it, and a decode engine's first byte after 10, rest after 8."""
    now = [100.0]
    monkeypatch.setattr(request_steps.time, "monotonic", lambda: now[0])
    one = request_steps.RequestSteps("/v1/completions")
    one.record["first_token"] = first_token
    for ms, then in ((1, one.waited), (20, lambda: one.prefilled("p")), (10, lambda: one.first_byte("d", is_streamed)),
                     (8, lambda: one.said({"usage": {"prompt_tokens": 9, "completion_tokens": tokens}, "metrics": metrics}))):
        now[0] += ms / 1000
        then()
    return one.end()


def close(values):
    return {name: pytest.approx(value, abs=1e-6) for name, value in values.items()}


METRICS = {"queue_time_ms": 5.0, "time_to_first_token_ms": 3.0, "generation_time_ms": 6.0}


def test_ttft_and_tpot_are_the_sums_of_their_steps(monkeypatch):
    at_decode = steps_of(monkeypatch, "decode", True, METRICS)
    steps = {"wait": 1, "prefill": 20, "hand": 2, "kv": 5, "next": 3, "rest": 8, "until": 10, "total": 39}
    assert at_decode["ms"] == close({**steps, "ttft": 31, "tpot": 2})
    assert at_decode["ttft_ms_of"] == close({"wait": 1, "prefill": 20, "hand": 2, "kv": 5, "next": 3})
    assert at_decode["tpot_ms_of"] == close({"rest": 2})
    at_prefill = steps_of(monkeypatch, "prefill", True, METRICS)
    assert at_prefill["ms"] == close({**steps, "ttft": 21, "tpot": 4.5})
    assert at_prefill["ttft_ms_of"] == close({"wait": 1, "prefill": 20})
    assert at_prefill["tpot_ms_of"] == close({"hand": 0.5, "kv": 1.25, "next": 0.75, "rest": 2})


def test_an_answer_that_is_not_streamed_has_the_steps_that_its_engine_says(monkeypatch):
    record = steps_of(monkeypatch, "decode", False, METRICS)
    assert record["ms"] == close({"wait": 1, "prefill": 20, "hand": 4, "kv": 5, "next": 3, "rest": 6, "until": 12,
                                  "total": 39, "ttft": 33, "tpot": 1.5})


def test_what_an_engine_does_not_say_is_not_invented(monkeypatch):
    streamed = steps_of(monkeypatch, "decode", True, None)
    assert [streamed["ms"][name] for name in ("hand", "kv", "next")] == [None] * 3
    assert streamed["ms"]["ttft"] == pytest.approx(31) and streamed["ttft_ms_of"]["until"] == pytest.approx(10)
    whole = steps_of(monkeypatch, "decode", False, {"queue_time_ms": "5", "time_to_first_token_ms": True})
    assert [whole["ms"][name] for name in ("until", "rest", "ttft", "tpot")] == [None] * 4
    assert whole["ttft_ms_of"] is None and whole["tpot_ms_of"] is None
    assert steps_of(monkeypatch, "decode", True, METRICS, tokens="many")["ms"]["tpot"] is None


@pytest.mark.parametrize("where", ["prefill", "decode"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_table_has_each_request_and_the_sum(proxy, counting, where, is_streamed):  # noqa: F811
    prefills, decodes = [counting(), counting()], [counting(), counting(), counting(has_metrics=False)]
    one = proxy(prefills, decodes, "--first-token", where)
    for _ in range(6):
        (one.stream if is_streamed else one.complete)([1, 2, 3], max_tokens=4)
    said = one.get("/steps")
    assert [record["prefill"] for record in said["requests"]] == [prefills[i % 2].url for i in range(6)]
    assert [record["decode"] for record in said["requests"]] == [decodes[i % 3].url for i in range(6)]
    for record in said["requests"]:
        # With the first token from the prefill engine, the decode engine has one token more in and one less out.
        assert record["first_token"] == where and record["streamed"] == is_streamed and record["cached_tokens"] == 2
        assert (record["prompt_tokens"], record["tokens"]) == (3, 4)
        ms = record["ms"]
        if record["decode"] != decodes[2].url:
            assert (ms["kv"], ms["next"]) == (QUEUE_MS, FIRST_MS)
        assert ms["total"] >= ms["wait"] + ms["prefill"]
    assert said["sum"]["requests"] == 6
    assert said["sum"]["ms"]["kv"] == 4 * QUEUE_MS and said["sum"]["counted"]["kv"] == 4
    lines = one.steps().splitlines()
    assert len(lines) == 9 and lines[0].split()[-3:] == ["TTFT", "TPOT", "total"] and lines[-2].split()[0] == "sum"


def test_a_refused_request_is_not_in_the_table(proxy, counting):  # noqa: F811
    one = proxy([counting()], [counting(refuses=True)])
    assert refused(one.complete, [1]) == (400, "too long")
    assert one.get("/steps")["requests"] == []
