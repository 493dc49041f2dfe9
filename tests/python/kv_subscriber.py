"""A subscriber of `cachalot serve --kv-events`: holds what the events say, and nothing else."""

import time

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)
DEADLINE_S = 60  # of one wait


class Subscriber:
    """`spaces`: topic: hash: (parent or None, tokens). `decode` turns a payload into [time, events, rank]; events have the
    attributes or keys that vLLM's have."""

    def __init__(self, live, replay, decode=msgspec.msgpack.decode, topic="kv@"):
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.set_hwm(0)
        self._live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._live.connect(live)
        self._replay_endpoint, self._replay = replay, None
        self._decode = decode
        self.spaces, self.last, self.replays = {}, None, 0

    @property
    def blocks(self):
        """Of the only namespace."""
        found = [blocks for blocks in self.spaces.values() if blocks]
        assert len(found) < 2, "several namespaces"
        return found[0] if found else {}

    def __len__(self):
        return sum(len(blocks) for blocks in self.spaces.values())

    def close(self):
        self._context.destroy(linger=0)

    # --- What it hears ---------------------------------------------------------------------------

    def listen(self, seconds=0.0):
        """Applies what has come, and what comes within this time."""
        until = time.monotonic() + seconds
        while self._live.poll(max(0, int(1000 * (until - time.monotonic())))):
            topic, number, payload = self._live.recv_multipart()
            number = int.from_bytes(number, "big")
            if self.last is not None and number <= self.last:
                continue
            if self.last is None or number != self.last + 1:
                self.catch_up()
            else:
                self._apply(topic, number, payload)

    def catch_up(self):
        """Asks for what it has not heard."""
        self.replays += 1
        if self._replay is not None:
            self._replay.close(linger=0)
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.set_hwm(0)
        self._replay.connect(self._replay_endpoint)
        first = 0 if self.last is None else self.last + 1
        self._replay.send_multipart((b"", first.to_bytes(8, "big")))
        while self._replay.poll(1000 * DEADLINE_S):
            empty, topic, number, payload = self._replay.recv_multipart()
            assert empty == b""
            if number == END:
                assert topic == b"" and payload == b""
                return
            number = int.from_bytes(number, "big")
            assert self.last is None or number > self.last
            self._apply(topic, number, payload)
        raise AssertionError("the replay did not end")

    def wait_for(self, condition):
        until = time.monotonic() + DEADLINE_S
        while not condition(self):
            assert time.monotonic() < until, f"{len(self)} blocks, last batch {self.last}"
            self.listen(0.05)
            self.catch_up()

    # --- What it makes of it ---------------------------------------------------------------------

    def _apply(self, topic, number, payload):
        self.last = number
        blocks = self.spaces.setdefault(topic.decode(), {})
        _, events, rank = self._decode(payload)
        assert rank is None and events
        for event in events:
            kind = event["type"]
            if kind == "AllBlocksCleared":
                for space in self.spaces.values():
                    space.clear()
            elif kind == "BlockRemoved":
                assert (event["medium"], event["locality"]) == ("CPU", "LOCAL")
                for key in event["block_hashes"]:
                    del blocks[key]
            else:
                assert kind == "BlockStored"
                self._store(blocks, event)

    @staticmethod
    def _store(blocks, event):
        assert (event["medium"], event["locality"]) == ("CPU", "LOCAL")
        parent, size, tokens = event["parent_block_hash"], event["block_size"], event["token_ids"]
        assert len(tokens) == size * len(event["block_hashes"])
        for i, key in enumerate(event["block_hashes"]):
            assert len(key) == 16 and key not in blocks
            assert parent is None or parent in blocks
            blocks[key] = (parent, tokens[i * size : (i + 1) * size])
            parent = key
