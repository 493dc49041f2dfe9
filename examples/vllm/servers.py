"""vLLM's OpenAI server as a child process, and what its clients see."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from ports import free_port

PROXY = Path(__file__).with_name("prefill_decode_proxy.py")
MODEL = "tiny"  # the name that clients give
_START_S = 600
_ANSWER_S = 120


class Place:
    """Where servers run: here."""

    host = "127.0.0.1"

    def command(self, command: List[str]) -> List[str]:
        return command

    def url(self, port: int) -> str:
        """Of a server there, as this process reaches it."""
        return f"http://{self.host}:{port}"


HERE = Place()


def _members(process: "subprocess.Popen[Any]") -> Iterator[Path]:
    """The folders in /proc of a session's processes, but Python's resource trackers."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == process.pid and b"resource_tracker" not in (folder / "cmdline").read_bytes():
                yield folder


def shared_memory(process: "subprocess.Popen[Any]") -> Set[Path]:
    """Of vLLM's processes in this session: queues between them, and what ranks on CPUs exchange."""
    found: Set[Path] = set()
    for folder in _members(process):
        with contextlib.suppress(OSError):
            found.update(map(Path, re.findall(r"/dev/shm/(?:psm_|vllm_dist_)\S+", (folder / "maps").read_text())))
    return found


def kill_group(process: "subprocess.Popen[Any]") -> None:
    """All processes of a session at once, and their shared memory. Python's resource trackers end by themselves: they
    remove what they know, which is not all."""
    left = shared_memory(process)
    for folder in _members(process):
        with contextlib.suppress(OSError):
            os.kill(int(folder.name), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)  # the trackers, if the group was stopped
    process.wait()
    for path in left:
        path.unlink(missing_ok=True)


class Child:
    """A server process with children of its own; its output is in a file. inner_url: as its neighbours reach it."""

    def __init__(self, command: List[str], port: int, log: Path, environment: Optional[Dict[str, str]] = None,
                 place: Place = HERE) -> None:
        self.url, self.inner_url, self.log = place.url(port), f"http://{place.host}:{port}", Path(log)
        with self.log.open("w") as out:
            self.process = subprocess.Popen(place.command(command), stdout=out, stderr=subprocess.STDOUT,
                                            start_new_session=True, env={**os.environ, **(environment or {})})

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"a server has ended:\n{self.log.read_text()[-5000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
            return answer.status == 200
        return False

    def wait_ready(self) -> None:
        until = time.monotonic() + _START_S
        while not self.is_ready():
            if time.monotonic() > until:
                raise RuntimeError(f"a server does not answer:\n{self.log.read_text()[-5000:]}")
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        """To the server and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        kill_group(self.process)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kill()


class Api:
    """Requests to a server, or to a proxy before several."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, path: str, body: Dict[str, Any], timeout: float = _ANSWER_S) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps({"model": MODEL, **body}).encode(),
                                         {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout)

    def post(self, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        with self.send(path, body) as answer:
            return {**json.load(answer), "timing": answer.headers.get("Server-Timing", "")}

    def get(self, path: str) -> Dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def complete(self, prompt: Any, **options: Any) -> Dict[str, Any]:
        """Returns the answer, with text, tokens (if return_token_ids was asked for) and timing."""
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **options}
        answer = self.post("/v1/completions", body)
        choice = answer["choices"][0]
        return {**answer, "text": choice["text"], "tokens": choice.get("token_ids")}

    def stream(self, prompt: Any, each: Callable[[], Any] = lambda: None, **options: Any) -> Dict[str, Any]:
        """Returns text, tokens, usage, the error if there was one, and first_s: seconds to the first event."""
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, **options}
        seen: Dict[str, Any] = {"text": "", "tokens": [], "usage": {}, "error": None}
        began = time.monotonic()
        with self.send("/v1/completions", body) as answer:
            seen["timing"] = answer.headers.get("Server-Timing", "")
            for line in answer:
                seen.setdefault("first_s", time.monotonic() - began)
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: "):])
                seen["error"] = event.get("error") or seen["error"]
                seen["usage"] = event.get("usage") or seen["usage"]
                for choice in event.get("choices", ()):
                    seen["text"] += choice["text"]
                    seen["tokens"] += choice.get("token_ids") or []
                each()
        return seen

    def metrics(self) -> Dict[str, float]:
        """Prometheus counters by name, and by name/source where a counter has sources."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values: Dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                labelled, value = line.rsplit(" ", 1)
                name, _, labels = labelled.partition("{")
                source = re.search('source="([^"]*)"', labels)
                for key in [name] + ([f"{name}/{source[1]}"] if source else []):
                    values[key] = values.get(key, 0.0) + float(value)
        return values


class Keeper:
    """A new pool and its keeper, until the end of the block."""

    def __init__(self, program: Path, pool: str, block_bytes: int, blocks: int) -> None:
        self._program, self.pool = program, pool
        self._process = subprocess.Popen([str(program), "serve", "--pool", pool, "--create", "--block-bytes",
                                          str(block_bytes), "--capacity-blocks", str(blocks)],
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self._process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"the keeper does not start: {line}{self._process.stdout.read()}")

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()
        subprocess.run([str(self._program), "pool", "destroy", self.pool], capture_output=True)


class Server(Child, Api):
    """An engine on one CPU. pool, connector: a pool, or the connector's options; neither: without the connector."""

    def __init__(self, model: Path, log: Path, pool: Optional[str] = None, role: str = "kv_both",
                 cache_bytes: int = 64 << 20, model_tokens: int = 4096, flags: Any = (),
                 environment: Optional[Dict[str, str]] = None,
                 connector: Optional[Dict[str, Any]] = None, place: Place = HERE,
                 transfer: Optional[Dict[str, Any]] = None) -> None:
        """transfer: more of vLLM's kv_transfer_config."""
        port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
                   "--served-model-name", MODEL, "--host", place.host, "--port", str(port), "--enforce-eager",
                   "--max-model-len", str(model_tokens), "--kv-cache-memory-bytes", str(cache_bytes),
                   "--max-num-seqs", "4", "--enable-prompt-tokens-details", *flags]
        connector = {"pool": pool} if pool is not None else connector
        if connector is not None:
            command += ["--kv-transfer-config", json.dumps({
                "kv_connector": "CachalotConnector", "kv_role": role, "kv_connector_extra_config": connector,
                **(transfer or {})})]
        super().__init__(command, port, log, {
            "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **(environment or {})}, place)


class Proxy(Child, Api):
    """prefill_decode_proxy.py before engines."""

    def __init__(self, log: Path, prefill: List[str], decode: List[str], *flags: str, place: Place = HERE) -> None:
        port = free_port()
        super().__init__([sys.executable, str(PROXY), "--host", place.host, "--port", str(port), "--prefill", *prefill,
                          "--decode", *decode, *flags], port, log, place=place)

    def steps(self) -> str:
        """The table of its requests."""
        with urllib.request.urlopen(self.url + "/steps.txt", timeout=30) as answer:
            return answer.read().decode()

    def in_flight(self, url: str) -> int:
        """Requests of the proxy in an engine, also in one that does not answer."""
        try:
            health = self.get("/health")
        except urllib.error.HTTPError as error:
            health = json.load(error)
        return next(engine["in_flight"] for engine in health["engines"] if engine["url"] == url)
