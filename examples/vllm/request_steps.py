"""Where the time of a request went that one engine prefilled and another one answered.

wait      until the proxy asks a prefill engine: its queue, and the request's body
1 prefill the prefill engine computes the prompt and the first token, and answers the proxy
2 hand    the proxy asks the decode engine: HTTP both ways, tokenizer
3 kv      the decode engine waits for a place, then pulls the prompt's KV
4 next    the decode engine computes its first token
5 rest    all later tokens

With the first token from the prefill engine, TTFT is wait + 1, and 2 to 5 are part of TPOT. With the first token from the
decode engine, TTFT is wait + 1 to 4. Steps 2 to 4 are told apart by what the decode engine says of itself: vLLM with
--enable-per-request-metrics. Without it they are one number.
"""

import collections
import time
from typing import Any, Deque, Dict, List, Optional

STEPS = ("wait", "prefill", "hand", "kv", "next", "rest")
_TITLES = {"wait": "wait", "prefill": "1 prefill", "hand": "2 hand", "kv": "3 kv", "next": "4 next", "until": "2-4",
           "rest": "5 rest", "ttft": "TTFT", "tpot": "TPOT", "total": "total"}
_COLUMNS = ("wait", "prefill", "hand", "kv", "next", "until", "rest", "ttft", "tpot", "total")
_KEPT = 1000


def _number(given: Any) -> Optional[float]:
    """Engines say what they like."""
    return float(given) if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given < 1e12 else None


class RequestSteps:
    """Of one request. Times in milliseconds."""

    def __init__(self, path: str) -> None:
        self._began = self._mark = time.monotonic()
        self.record: Dict[str, Any] = {"path": path, "prefill": None, "decode": None, "first_token": "decode",
                                       "streamed": False, "prompt_tokens": None, "cached_tokens": None, "tokens": None}
        self._ms: Dict[str, Optional[float]] = dict.fromkeys(STEPS)
        self._until_first_byte: Optional[float] = None
        self._engine: Dict[str, Any] = {}

    def _lap(self) -> float:
        now = time.monotonic()
        ms, self._mark = (now - self._mark) * 1000, now
        return ms

    def waited(self) -> None:
        self._ms["wait"] = self._lap()

    def prefilled(self, url: Optional[str]) -> None:
        self._ms["prefill"], self.record["prefill"] = self._lap(), url

    def first_byte(self, url: str, is_streamed: bool) -> None:
        self._until_first_byte = self._lap()
        self.record.update(decode=url, streamed=is_streamed)

    def said(self, answer: Dict[str, Any]) -> None:
        """What the decode engine says at its end: usage and metrics."""
        usage, metrics = answer.get("usage"), answer.get("metrics")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            self.record.update(prompt_tokens=usage.get("prompt_tokens"), tokens=usage.get("completion_tokens"))
            self.record["cached_tokens"] = details.get("cached_tokens") if isinstance(details, dict) else None
        if isinstance(metrics, dict):
            self._engine = metrics

    def end(self) -> Dict[str, Any]:
        """Returns the record, with the steps and what they are part of."""
        rest = self._lap()
        decode = (self._until_first_byte or 0.0) + rest
        kv, first = (_number(self._engine.get(name)) for name in ("queue_time_ms", "time_to_first_token_ms"))
        ms, until = self._ms, None
        if self.record["streamed"]:
            until, ms["rest"] = self._until_first_byte, rest
        elif kv is not None and first is not None:
            # One answer for all: its first byte is its last one.
            ms["rest"] = min(_number(self._engine.get("generation_time_ms")) or 0.0, decode)
            until = decode - ms["rest"]
        if until is not None and kv is not None and first is not None:
            ms.update(hand=max(until - kv - first, 0.0), kv=kv, next=first)
        total = (time.monotonic() - self._began) * 1000
        self.record["ms"] = {**ms, "until": until, "total": total}
        self._attribute(until, total)
        return self.record

    def _attribute(self, until: Optional[float], total: float) -> None:
        ms, tokens = self._ms, self.record["tokens"]
        decode = {name: ms[name] for name in ("hand", "kv", "next")} if ms["kv"] is not None else {"until": until}
        first = {name: ms[name] for name in ("wait", "prefill") if ms[name] is not None}
        later: Dict[str, Optional[float]] = {"rest": ms["rest"]}
        if self.record["first_token"] == "decode":
            first.update(decode)
        else:
            later = {**decode, **later}
        known = until is not None or self.record["first_token"] == "prefill"
        ttft = sum(value for value in first.values() if value is not None) if known else None
        gaps = tokens - 1 if isinstance(tokens, int) and tokens > 1 else None
        tpot = (total - ttft) / gaps if ttft is not None and gaps else None
        self.record["ms"].update(ttft=ttft, tpot=tpot)
        self.record["ttft_ms_of"] = first if known else None
        self.record["tpot_ms_of"] = {name: value / gaps for name, value in later.items() if value is not None} \
            if tpot is not None and gaps else None


class StepTable:
    """The last requests, and sums over all."""

    def __init__(self) -> None:
        self._records: Deque[Dict[str, Any]] = collections.deque(maxlen=_KEPT)
        self._sums: Dict[str, float] = dict.fromkeys(_COLUMNS, 0.0)
        self._counts: Dict[str, int] = dict.fromkeys(_COLUMNS, 0)
        self._requests = 0

    def add(self, record: Dict[str, Any]) -> None:
        self._requests += 1
        self._records.append({"request": self._requests, **record})
        for name in _COLUMNS:
            if (value := record["ms"].get(name)) is not None:
                self._sums[name] += value
                self._counts[name] += 1

    def json(self) -> Dict[str, Any]:
        means = {name: self._sums[name] / self._counts[name] if self._counts[name] else None for name in _COLUMNS}
        return {"requests": list(self._records), "sum": {"requests": self._requests, "ms": dict(self._sums),
                                                        "counted": dict(self._counts), "mean_ms": means}}

    def text(self) -> str:
        lines: List[List[str]] = [["request", "first", "tokens", *(_TITLES[name] for name in _COLUMNS)]]

        def cells(values: Dict[str, Optional[float]]) -> List[str]:
            return ["-" if values.get(name) is None else f"{values[name]:.1f}" for name in _COLUMNS]

        for record in self._records:
            tokens = f"{record['prompt_tokens']}+{record['tokens']}"
            lines.append([str(record["request"]), record["first_token"], tokens, *cells(record["ms"])])
        said = self.json()["sum"]
        lines.append(["sum", "", str(self._requests), *cells(said["ms"])])
        lines.append(["mean", "", "", *cells(said["mean_ms"])])
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) + "\n" for line in lines)
