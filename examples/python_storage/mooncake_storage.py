"""Keeps Cachalot's values in a Mooncake Store (PyPI: mooncake-transfer-engine, or -non-cuda without CUDA).

    mooncake_master --rpc_port 50051 --metrics_port 9003
    mooncake_client --master_server_address 127.0.0.1:50051 --metadata_server P2PHANDSHAKE --global_segment_size 4GB
    cachalot serve … --storage "plugin:PATH/libcachalot_python_storage.so?path=$PWD/examples/python_storage\
&module=mooncake_storage&class=MooncakeStorage&master=127.0.0.1:50051&admin=127.0.0.1:9003"

Values lie in the memory of the store's other clients, so that they outlive the keeper; `segment_bytes` adds memory of
the keeper's process. `admin` is the address of the master's HTTP server, which alone can list keys: without it a new
keeper starts cold. The store drops values when it is full: a miss. path= also takes the folder of the package, after ":".
"""

import errno
import json
import time
import urllib.request

from mooncake.store import MooncakeDistributedStore

_FULL, _ABSENT = -200, -704  # of the store's error codes
_HEAD_BYTES = 112


class MooncakeStorage:
    def __init__(self, master, metadata="P2PHANDSHAKE", host="127.0.0.1", protocol="tcp", device="", admin="",
                 prefix="cachalot-", segment_bytes="0", buffer_bytes=str(256 << 20)):
        self._admin, self._prefix = admin, prefix
        self._store = MooncakeDistributedStore()
        code = self._store.setup(host, metadata, int(segment_bytes), int(buffer_bytes), protocol, device, master)
        if code != 0:
            raise ConnectionError(f"Mooncake's setup() with master {master}: error {code}")

    def close(self):
        self._store.close()

    def _names(self, keys):
        return [self._prefix + key.hex() for key in keys]

    def exists(self, keys, deadline_ns):
        codes = self._store.batch_is_exist(self._names(keys)) if keys else []
        if any(code < 0 for code in codes):
            raise ConnectionError(f"Mooncake's batch_is_exist(): {min(codes)}")
        return [code == 1 for code in codes]

    def get(self, keys, deadline_ns):
        """Buffers of the store's own memory: nothing is copied here."""
        buffers = self._store.batch_get_buffer(self._names(keys)) if keys else []
        if any(buffer is None for buffer in buffers):
            self.exists(keys[:1], deadline_ns)  # absent, or a store that is down, which raises
        return [buffer and memoryview(buffer) for buffer in buffers]

    def put(self, values, deadline_ns):
        for key, value in values:
            code = self._store.put(self._prefix + key.hex(), value)
            if code not in (0, _FULL):
                raise ConnectionError(f"Mooncake's put(): {code}")  # each further one would wait for seconds
            yield None if code == 0 else OSError(errno.ENOSPC, "the Mooncake Store is full")

    def remove(self, keys, deadline_ns):
        codes = self._store.batch_remove(self._names(keys), True) if keys else []
        if any(code not in (0, _ABSENT) for code in codes):
            raise ConnectionError(f"Mooncake's batch_remove(): {min(codes)}")

    def list(self, deadline_ns):
        if not self._admin:
            return
        seconds = max(0.001, (deadline_ns - time.monotonic_ns()) / 1e9)
        with urllib.request.urlopen(f"http://{self._admin}/get_all_keys", timeout=seconds) as answer:
            text = answer.read().decode()
        names = json.loads(text) if text.startswith("[") else text.split()
        names = [name for name in names if name.startswith(self._prefix)]
        for begin in range(0, len(names), 32):
            for buffer in self._store.batch_get_buffer(names[begin:begin + 32]):
                if buffer is not None:
                    yield bytes(memoryview(buffer)[:_HEAD_BYTES])
