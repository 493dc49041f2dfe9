"""A keeper and cachalot-llama servers as child processes, and requests to them.

Needs nothing but the standard library. Used by the demonstration, the benchmark and the tests.
"""
import http.client
import json
import os
import select
import subprocess
import tempfile
import time
import urllib.request


class Process:
    """A program that prints one ready line, and is ended with the block that it is used in."""

    def __init__(self, arguments, timeout_s=60):
        self.errors = tempfile.TemporaryFile()
        self.child = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.PIPE,
                                      stderr=self.errors, text=True)
        try:
            line = self._first_line(timeout_s)
        except BaseException:
            self.child.kill()
            self.stop()
            raise
        self.ready = dict(word.split("=", 1) for word in line.split() if "=" in word)

    def _first_line(self, timeout_s):
        readable, _, _ = select.select([self.child.stdout], [], [], timeout_s)
        line = self.child.stdout.readline() if readable else ""
        if line.startswith("ready "):
            return line
        if not readable:
            raise RuntimeError(f"{self.child.args[0]}: not ready after {timeout_s} s")
        self.child.wait()
        raise RuntimeError(f"{self.child.args[0]} ended ({self.child.returncode}): {self.stderr()}")

    @property
    def pid(self):
        return self.child.pid

    def stderr(self):
        if not self.errors.closed:
            self.errors.seek(0)
            self.error_text = self.errors.read().decode(errors="replace").strip()
        return self.error_text

    def stop(self, timeout_s=30):
        """SIGTERM, and the exit code; SIGKILL for what does not end."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        self.stderr()
        self.errors.close()
        return self.child.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Keeper(Process):
    """Makes a pool and serves it; removes it afterwards."""

    def __init__(self, cachalot, pool, block_bytes, capacity_blocks, *flags):
        self.cachalot, self.pool = cachalot, pool
        super().__init__([cachalot, "serve", "--pool", pool, "--create", "--block-bytes", block_bytes,
                          "--capacity-blocks", capacity_blocks, *flags])

    def storage(self):
        """Counters of the storage behind the pool, by their names after cachalot_storage_. Needs --metrics."""
        with urllib.request.urlopen(f"http://{self.ready['metrics']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        prefix = "cachalot_storage_"
        return {line.split("{")[0].split()[0][len(prefix):]: float(line.split()[-1])
                for line in lines if line.startswith(prefix)}

    def wait_for_storage(self, blocks, timeout_s=60):
        """Until storage is in use, has so many blocks, and none waits to be written."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.storage()
            if seen.get("objects", -1) >= blocks and seen["queued_blocks"] == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.pool}: after {timeout_s} s not {blocks} blocks in storage: {seen}")
            time.sleep(0.02)

    def wait_for_fetches(self, timeout_s=60):
        """Until storage brings nothing more."""
        deadline = time.monotonic() + timeout_s
        while self.storage()["queued_fetches"] != 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.pool}: storage still brings blocks after {timeout_s} s")
            time.sleep(0.02)

    def stop(self, timeout_s=30):
        code = super().stop(timeout_s)
        if os.path.exists(self.pool):
            subprocess.run([self.cachalot, "pool", "destroy", self.pool], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return code


class Server(Process):
    """cachalot-llama on a port of its own."""

    def __init__(self, cachalot_llama, model, *flags, pool=None):
        where = [] if pool is None else ["--pool", pool]
        super().__init__([cachalot_llama, "--model", model, "--port", 0, *where, *flags])
        self.address = self.ready["url"].split("//")[1]

    def connect(self, timeout_s=600):
        return http.client.HTTPConnection(self.address, timeout=timeout_s)

    def call(self, method, path, body=None):
        """(status, headers, JSON) of one request; a body that is no bytes is sent as JSON."""
        connection = self.connect()
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        finally:
            connection.close()

    def complete(self, prompt, **parameters):
        """The answer to a completion that must succeed."""
        return self._expect_ok("/v1/completions", {"prompt": prompt, **parameters})

    def chat(self, messages, **parameters):
        return self._expect_ok("/v1/chat/completions", {"messages": messages, **parameters})

    def _expect_ok(self, path, body):
        status, _, answer = self.call("POST", path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status}: {answer['error']['message']}")
        return answer

    def events(self, path, body):
        """The events of a streamed answer as they come: JSON, and "[DONE]" at the end."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{path}: {response.status}: {response.read().decode()}")
            for line in iter(response.readline, b""):
                if line.startswith(b"data: "):
                    data = line[6:].decode().strip()
                    yield data if data == "[DONE]" else json.loads(data)
        finally:
            connection.close()

    def timed(self, prompt, **parameters):
        """A completion as its user sees it: when the first text came, all text, usage and timings."""
        return self._timed("/v1/completions", {"prompt": prompt, **parameters}, lambda choice: choice["text"])

    def timed_chat(self, messages, **parameters):
        return self._timed("/v1/chat/completions", {"messages": messages, **parameters},
                           lambda choice: choice["delta"].get("content", ""))

    def _timed(self, path, body, text_of):
        begin, first_s, text, last = time.monotonic(), None, "", None
        for event in self.events(path, {**body, "stream_options": {"include_usage": True}}):
            if event == "[DONE]":
                break
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            piece = text_of(event["choices"][0]) if event["choices"] else ""
            if piece and first_s is None:
                first_s = time.monotonic() - begin
            text += piece
            last = event
        return {"first_text_s": first_s, "total_s": time.monotonic() - begin, "text": text,
                "usage": last["usage"], "timings": last["timings"]}
