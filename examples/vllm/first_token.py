"""The first token comes from the prefill engine: the decode engine goes on from the prompt and that token.

vLLM takes a prompt as tokens in /v1/completions only, and what a request asks for must mean the same one token later:
with anything else than the fields below the decode engine computes the first token.
"""

import json
from typing import Any, Dict, List, Optional

#: Penalties, seeds, log probabilities, stop strings and grammars would see the first token as part of the prompt.
_GOES_ON = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stream", "stream_options", "n",
            "ignore_eos", "return_token_ids", "user", "cache_salt", "priority", "stop_token_ids"}
_DEFAULT_TOKENS = 16  # of /v1/completions


def _are_tokens(given: Any) -> bool:
    return isinstance(given, list) and len(given) > 0 and all(type(token) is int for token in given)


def can_go_on(path: str, body: Dict[str, Any]) -> bool:
    """Whether a decode engine can go on with this request after its first token."""
    options, prompt, limit = body.get("stream_options"), body.get("prompt"), body.get("max_tokens")
    return (path == "/v1/completions" and body.keys() <= _GOES_ON and body.get("n") in (None, 1) and
            (isinstance(prompt, str) or _are_tokens(prompt)) and
            (options is None or isinstance(options, dict) and options.keys() <= {"include_usage"}) and
            (limit is None or type(limit) is int and limit > 1))


class FirstToken:
    """What the prefill engine has answered, before what the decode engine answers."""

    def __init__(self, answer: Dict[str, Any], body: Dict[str, Any]) -> None:
        """Use `of` instead."""
        choice = answer["choices"][0]
        self._answer, self._body, self.token, self.text = answer, body, choice["token_ids"][0], choice["text"]
        self.prompt: List[int] = choice["prompt_token_ids"]
        self.is_all = choice["finish_reason"] == "stop"
        self._stop_reason = choice.get("stop_reason")

    @staticmethod
    def of(answer: Any, body: Dict[str, Any]) -> Optional["FirstToken"]:
        """None if the decode engine must compute the token: the answer has none, or half a character."""
        try:
            choice = answer["choices"][0]
            is_whole = (choice["finish_reason"] == "stop" or choice["text"]) and "\ufffd" not in choice["text"]
            if is_whole and _are_tokens(choice["prompt_token_ids"]) and _are_tokens(choice["token_ids"]) and \
                    len(choice["token_ids"]) == 1 and isinstance(answer["id"], str):
                return FirstToken(answer, body)
        except (KeyError, IndexError, TypeError):
            pass
        return None

    def rest_of(self) -> Dict[str, Any]:
        """The request to the decode engine."""
        limit = self._body.get("max_tokens")
        return {**self._body, "prompt": self.prompt + [self.token],
                "max_tokens": (_DEFAULT_TOKENS if limit is None else limit) - 1}

    def _returned(self) -> Dict[str, Any]:
        return {"prompt_token_ids": self.prompt, "token_ids": [self.token]} if self._body.get("return_token_ids") else {}

    def _head(self) -> Dict[str, Any]:
        return {"id": self._answer["id"], "object": "text_completion", "created": self._answer.get("created"),
                "model": self._answer.get("model")}

    def event(self) -> bytes:
        choice = {"index": 0, "text": self.text, "logprobs": None, "finish_reason": "stop" if self.is_all else None,
                  "stop_reason": self._stop_reason, **self._returned()}
        return f"data: {json.dumps({**self._head(), 'choices': [choice]})}\n\n".encode()

    def end_events(self) -> bytes:
        """After event(), if the first token is all."""
        usage = f"data: {json.dumps({**self._head(), 'choices': [], 'usage': self._answer.get('usage')})}\n\n"
        asked = isinstance(self._body.get("stream_options"), dict) and self._body["stream_options"].get("include_usage")
        return ((usage if asked else "") + "data: [DONE]\n\n").encode()

    def only(self) -> Dict[str, Any]:
        """The whole answer, if the first token is all."""
        choice = {name: value for name, value in self._answer["choices"][0].items()
                  if self._body.get("return_token_ids") or not name.endswith("token_ids")}
        return {**{name: value for name, value in self._answer.items() if name != "kv_transfer_params"},
                "choices": [choice]}

    def later(self, event: Dict[str, Any]) -> Dict[str, Any]:
        """An event of the decode engine, as the client sees it."""
        event.update(self._head())
        for choice in event.get("choices") or ():
            choice.pop("prompt_token_ids", None)
        self._count(event.get("usage"))
        return event

    def whole(self, answer: Dict[str, Any]) -> Dict[str, Any]:
        """The decode engine's answer, as the client sees it."""
        choice = answer["choices"][0]
        choice["text"] = self.text + choice["text"]
        if self._body.get("return_token_ids"):
            choice.update(prompt_token_ids=self.prompt, token_ids=[self.token, *choice["token_ids"]])
        answer.update(self._head())
        self._count(answer.get("usage"))
        return answer

    @staticmethod
    def _count(usage: Any) -> None:
        """The first token is one of the answer, not of the prompt."""
        if isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
            usage["prompt_tokens"] -= 1
            usage["completion_tokens"] += 1
