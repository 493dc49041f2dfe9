"""What an installed wheel does, with nothing but Python: run by wheel_test.py in a bare root, and by hand in any environment."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cachalot

PROGRAM = Path(sys.executable).parent / "cachalot"
POOL = "/dev/shm/cachalot_wheel_test"
GEOMETRY = cachalot.KvGeometry(layers=2, kv_heads=2, head_dim=64, dtype="f16", block_tokens=16)
OTHER = f"""
import cachalot
geometry = cachalot.KvGeometry(layers=2, kv_heads=2, head_dim=64, dtype="f16", block_tokens=16)
with cachalot.Client(pool="{POOL}", model="wheel@1", geometry=geometry) as client:
    into = bytearray(5000)
    client.register_buffer(into)
    assert client.get("key", into) == 5000
    assert bytes(into) == bytes(number % 251 for number in range(5000))
"""


def run(*words, code=0):
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == code, f"{words}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def version():
    assert run(PROGRAM, "--version") == f"cachalot {cachalot.__version__}\n"


def replay():
    """The command of README.md and docs/guide/install.md."""
    trace = run(sys.executable, "-m", "cachalot.example_trace").strip()
    out = run(PROGRAM, "replay", "--trace", trace, "--engines", 4, "--block-bytes", "4KiB", "--capacity-blocks", 20000,
              "--speed", "max", "--verify", "full")
    assert "1,000 requests" in out and ": 0 wrong" in out, out
    hits = int(out.split("every byte of ")[1].split()[0].replace(",", ""))
    assert hits > 1000, out


def simulate():
    """A program of its own, which `cachalot` finds in the package."""
    trace = run(sys.executable, "-m", "cachalot.example_trace").strip()
    out = run(PROGRAM, "simulate", "--trace", trace, "--prefill", 2, "--decode", 2, "--policy", "random", "--json", "-")
    assert json.loads(out.splitlines()[0]), out  # the text is on stderr
    for command in ("calibrate", "long-prefill", "tiers"):
        assert f"Usage: cachalot {command} " in run(PROGRAM, command, "--help")


def bench():
    """All of them are there; one is run."""
    assert json.loads(run(PROGRAM, "bench", "hash", "--quick", "--json", "-").splitlines()[0])


def two_processes():
    with cachalot.EmbeddedKeeper(pool=POOL, block_bytes=GEOMETRY.block_bytes, capacity_blocks=64), \
         cachalot.Client(pool=POOL, model="wheel@1", geometry=GEOMETRY) as client:
        value = bytearray(number % 251 for number in range(5000))
        client.register_buffer(value)
        assert client.put("key", value) == 5000
        run(sys.executable, "-c", OTHER)


def connectors():
    import cachalot.connectors.vllm_plugin  # noqa: F401

    for engine in ("vllm", "sglang", "lmcache"):
        try:
            __import__(f"cachalot.connectors.{engine}")
        except ImportError as error:
            assert engine in str(error).lower(), error


def libraries():
    """Those that cachalot.vmm and cachalot.torch_allocator open."""
    import ctypes

    for name in ("libcachalot.so", "libcachalot_torch.so"):
        ctypes.CDLL(str(Path(cachalot.__file__).parent / name))


def storage():
    """RocksDB is not in a wheel, and that is said; the clients of Redis and S3 are in it, and find neither server nor keys."""
    serve = (PROGRAM, "serve", "--pool", POOL, "--create", "--block-bytes", "4KiB", "--capacity-blocks", 64, "--storage")
    said = run(*serve, "rocksdb:/tmp/cachalot_wheel_test", code=3)
    assert "this build has no rocksdb" in said and "docs/guide/install.md" in said and said.count("\n") == 1, said
    said = run(*serve, "s3://bucket?endpoint=http://127.0.0.1:1", code=2)
    assert "has no keys" in said, said
    keeper = subprocess.Popen([str(word) for word in (*serve, "redis://127.0.0.1:1")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
    assert keeper.stdout.readline().startswith("ready")
    run(PROGRAM, "stop", "--pool", POOL)
    assert "Connection refused" in keeper.communicate(timeout=60)[1]
    run(PROGRAM, "pool", "destroy", POOL)


def main():
    compilers = [name for name in ("cc", "gcc", "g++", "clang") if shutil.which(name)]
    print("compilers:", compilers or "none")
    for check in (version, replay, simulate, bench, two_processes, connectors, libraries, storage):
        check()
        print("ok", check.__name__)


if __name__ == "__main__":
    main()
