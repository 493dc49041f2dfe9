"""A pool that two operating systems map: what one writes the other reads, and what becomes of it when an engine, a keeper or
a whole machine ends, stops or comes back.

usage: two_hosts_test.py CACHALOT POOL_LOAD [unittest's arguments]; a test is KIND.NAME, KIND is Nvdimm or Cxl
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from guest import CxlType3, Guest, GuestError, Nvdimm
from image import Image

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build" / "vm"
BLOCK = 65536
BLOCKS = 800  # published at most; a load has 512 of its own
HELD = 16  # what `cachalot_pool_load hold` stores into
SUSPECTED_AFTER_S = 10
image = None


class TwoHosts:
    region_kind = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cachalot-vm-")
        self.addCleanup(self.folder.cleanup)
        self.region = self.region_kind(self.folder.name)
        self.region.prepare(image, self.folder.name)
        self.device = self.region.device
        self.guests = {}
        self.addCleanup(lambda: [guest.kill() for guest in self.guests.values()])
        # Both boot at once.
        for name in ("a", "b"):
            self.guests[name] = Guest(name, image, self.region, self.folder.name, wait=False)
        for name in ("a", "b"):
            self.finish_boot(name)
        self.a.run(
            f"cachalot pool create {self.device} --domain noncoherent --hosts 2 --clients 16 "
            f"--block-bytes {BLOCK} --capacity-blocks {BLOCKS}"
        )

    a = property(lambda self: self.guests["a"])
    b = property(lambda self: self.guests["b"])

    def finish_boot(self, name, boots=2):
        guest = self.guests[name]
        guest.wait_for_boot()
        guest.run(f"echo {hashlib.md5(name.encode()).hexdigest()} > /etc/machine-id")
        try:
            self.region.attach(guest)
        except GuestError as error:
            # The tools that set the device up were seen to be killed in the guest, once in some dozens of boots.
            if boots == 1:
                raise
            print(f"  {error}; {name} boots again; its kernel says:\n{guest.try_run('dmesg | tail -n 30')[1]}")
            guest.kill()
            self.boot_again(name, boots - 1)

    def boot_again(self, name, boots=2):
        self.guests[name] = Guest(name, image, self.region, self.folder.name, wait=False)
        self.finish_boot(name, boots)

    def serve(self, name, *flags):
        host = "ab".index(name)
        line = f"cachalot serve --pool {self.device} --host {host} --log-level info {' '.join(flags)}"
        self.guests[name].run(f"{line} > /tmp/serve.log 2>&1 &")
        word = "standby" if "--standby" in flags else "ready"
        self.wait_for(lambda: word in self.log(name), 30, f"{word} of {name}")

    def log(self, name):
        return self.guests[name].run("cat /tmp/serve.log")

    def start_load(self, name, what):
        """Runs in the background; finish_load() has its counts."""
        guest = self.guests[name]
        line = f"cachalot_pool_load {self.device} {'ab'.index(name)} {what}"
        guest.run(f"({line} > /tmp/load-{what} 2>&1; echo $? > /tmp/load-{what}.code) & true")
        self.wait_for(lambda: guest.run(f"head -n 1 /tmp/load-{what}"), 20, f"load {what} of {name}")

    def finish_load(self, name, what, timeout=150):
        guest = self.guests[name]
        self.wait_for(lambda: guest.try_run(f"test -s /tmp/load-{what}.code")[0] == 0, timeout, f"end of {what}")
        output = guest.run(f"cat /tmp/load-{what}")
        self.assertEqual(guest.run(f"cat /tmp/load-{what}.code"), "0", output)
        counts = json.loads(output.splitlines()[-1])
        self.assertEqual(counts["wrong"], 0)
        self.assertGreater(counts["read"], 0, counts)
        return counts

    def run_loads(self, seconds, names="ab"):
        for name in names:
            self.start_load(name, seconds)
        return [self.finish_load(name, seconds) for name in names]

    def info(self, name):
        return json.loads(self.guests[name].run(f"cachalot pool info {self.device} --json - 2>/dev/null"))

    def blocks(self, name):
        """The blocks by state; every block of the pool has one."""
        for _ in range(5):  # the counters are published line by line
            info = self.info(name)
            states = {key.removesuffix("_blocks"): n for key, n in info["accounting"].items() if key != "sum"}
            if sum(states.values()) == info["geometry"]["blocks"]:
                return states
        self.fail(info["accounting"])

    def wait_for(self, is_true, seconds, what):
        deadline = time.monotonic() + seconds
        while not (result := is_true()):
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.2)
        return result

    def put(self, name, key, parent=None):
        behind = f" --parent {parent}" if parent else ""
        self.guests[name].run(
            f"yes {key} | head -c 60000 | cachalot put {key} --pool {self.device} --host {'ab'.index(name)}"
            f"{behind} --wait 30"
        )

    def expect(self, name, key):
        got = self.guests[name].run(
            f"cachalot get {key} --pool {self.device} --host {'ab'.index(name)} --wait 30 | sha256sum"
        ).split()[0]
        wanted = hashlib.sha256((f"{key}\n" * 60000).encode()[:60000]).hexdigest()
        self.assertEqual(got, wanted, f"{key} on {name}")

    # --- tests ---

    def test_what_one_host_writes_the_other_reads(self):
        self.serve("a")
        self.serve("b", "--standby")
        for writer, reader in (("a", "b"), ("b", "a")):
            for i in range(3):
                self.put(writer, f"{writer}-{i}", f"{writer}-{i - 1}" if i else None)
            for i in range(3):
                self.expect(reader, f"{writer}-{i}")
        counts = self.run_loads(10)
        self.assertGreater(sum(one["committed"] for one in counts), 0)
        self.assertEqual(sum(one["failed_calls"] for one in counts), 0, counts)
        states = self.wait_for(lambda: self.all_returned("a"), 10, "all blocks returned")
        print(f"  {counts}; {states}")
        self.check_clean("a")

    def all_returned(self, name):
        states = self.blocks(name)
        return states if states["granted"] == states["quarantined"] == states["limbo"] == 0 else None

    def check_clean(self, name):
        """Of a pool that is served, and of it again without a keeper: every line, every payload."""
        guest = self.guests[name]
        host = "ab".index(name)
        guest.run(f"cachalot pool fsck {self.device}")
        for other in self.guests.values():
            if other.is_running():
                other.try_run("killall -9 cachalot_pool_load")
        guest.run(f"cachalot stop --pool {self.device} --host {host} --timeout 30")
        # A standby that took over meanwhile ends, too.
        while guest.try_run(f"cachalot stop --pool {self.device} --host {host} --timeout 30")[0] == 0:
            pass
        print("  " + guest.run(f"cachalot pool fsck {self.device}").splitlines()[-1])

    def test_an_engine_that_is_killed_gives_its_blocks_back_through_its_hosts_agent(self):
        self.serve("a")
        self.serve("b", "--standby")
        self.start_load("b", "hold")
        self.assertGreaterEqual(self.blocks("a")["granted"], HELD)
        self.b.run("killall -9 cachalot_pool_load")
        begun = time.monotonic()
        self.wait_for(lambda: self.all_returned("a"), SUSPECTED_AFTER_S - 2, "blocks of the killed engine")
        print(f"  free after {time.monotonic() - begun:.1f} s")
        self.check_clean("a")

    def test_a_machine_that_dies_keeps_its_blocks_until_it_boots(self):
        self.serve("a", "--suspect-after", "3000")
        self.serve("b", "--standby")
        self.start_load("b", "hold")
        self.start_load("b", "100")
        self.start_load("a", "40")
        time.sleep(3)
        self.b.kill()  # in the middle of stores
        self.wait_for(lambda: self.blocks("a")["quarantined"] >= HELD, 20, "quarantine")
        time.sleep(10)
        self.assertGreaterEqual(self.blocks("a")["quarantined"], HELD)
        counts = self.finish_load("a", "40")
        self.boot_again("b")
        self.serve("b", "--standby")
        self.wait_for(lambda: self.all_returned("a"), 20, "blocks of the machine that has booted")
        print(f"  {counts}; {self.run_loads(5)}")
        self.check_clean("a")

    def test_a_machine_that_stays_off_is_fenced_by_an_operator(self):
        self.serve("a", "--suspect-after", "3000")
        self.serve("b", "--standby")
        self.start_load("b", "hold")
        self.b.kill()
        self.wait_for(lambda: self.blocks("a")["quarantined"] >= HELD, 20, "quarantine")
        print(f"  {self.a.run(f'cachalot pool fence {self.device} --all-of-host 1')}")
        self.wait_for(lambda: self.all_returned("a"), 5, "fenced blocks")
        self.run_loads(5, "a")
        self.check_clean("a")

    def test_a_machine_that_only_seems_dead_loses_no_block(self):
        self.serve("a", "--suspect-after", "3000")
        self.serve("b", "--standby", "--take-over-after", "0")
        self.start_load("b", "hold")
        self.start_load("b", "90")
        self.start_load("a", "80")
        time.sleep(3)
        self.b.pause()
        self.wait_for(lambda: self.blocks("a")["quarantined"] >= HELD, 20, "quarantine")
        time.sleep(55)
        self.assertGreaterEqual(self.blocks("a")["quarantined"], HELD)
        self.b.resume()  # it goes on to store into the blocks that it was lent a minute ago
        counts = [self.finish_load(name, seconds) for name, seconds in (("a", "80"), ("b", "90"))]
        self.assertGreaterEqual(self.blocks("a")["quarantined"], HELD)
        self.b.run("killall -9 cachalot_pool_load")
        self.wait_for(lambda: self.all_returned("a"), 10, "blocks of the killed engine")
        print(f"  {counts}")
        self.check_clean("a")

    def test_the_keepers_machine_dies_and_a_standby_elsewhere_takes_over(self):
        self.serve("a")
        self.serve("b", "--standby", "--take-over-after", "3")
        for i in range(3):
            self.put("a", f"before-{i}")
        self.start_load("a", "100")
        self.start_load("b", "30")
        time.sleep(3)
        self.a.kill()
        begun = time.monotonic()
        self.wait_for(lambda: "ready" in self.log("b"), 30, "takeover")
        print(f"  taken over after {time.monotonic() - begun:.1f} s")
        counts = self.finish_load("b", "30")
        for i in range(3):
            self.expect("b", f"before-{i}")
        # Its engine's blocks wait for the machine's next boot.
        self.boot_again("a")
        self.serve("a", "--standby")
        self.wait_for(lambda: self.all_returned("b"), 30, "blocks of the machine that has booted")
        self.put("a", "after")
        self.b.run(f"cachalot stop --pool {self.device} --host 1")
        self.wait_for(lambda: "ready" in self.log("a"), 15, "the standby of the first machine")
        for key in ("before-0", "after"):
            self.expect("b", key)
        print(f"  {counts}; {self.run_loads(5)}")
        self.check_clean("b")

    def test_the_keepers_machine_stands_still_for_a_while(self):
        self.serve("a")
        self.serve("b", "--standby", "--take-over-after", "3")
        self.start_load("a", "60")
        self.start_load("b", "50")
        time.sleep(3)
        self.a.pause()
        self.wait_for(lambda: "ready" in self.log("b"), 30, "takeover")
        time.sleep(20)
        self.a.resume()
        self.wait_for(lambda: "another keeper rules" in self.log("a"), 20, "the end of the first keeper")
        counts = [self.finish_load(name, seconds) for name, seconds in (("a", "60"), ("b", "50"))]
        self.wait_for(lambda: self.all_returned("b"), 30, "all blocks returned")
        print(f"  {counts}")
        self.check_clean("b")

    def test_a_number_of_another_machine_and_a_second_keeper_are_refused(self):
        self.serve("a")
        code, output = self.b.try_run(f"cachalot serve --pool {self.device} --host 0")
        self.assertEqual(code, 3, output)
        self.assertRegex(output, "host 0: this number is another machine's")
        code, output = self.b.try_run(f"cachalot serve --pool {self.device} --host 1")
        self.assertEqual(code, 3, output)
        self.assertRegex(output, "has a keeper already: pid [0-9]+ on host 0")
        code, output = self.b.try_run(f"cachalot pool create {self.device} --block-bytes 4096 --capacity-blocks 64")
        self.assertEqual(code, 3, output)
        self.assertRegex(output, "holds a pool that a keeper serves")


    def test_two_pools_lie_in_parts_of_one_device(self):
        parts = [f"{self.device}@128MiB+64MiB", f"{self.device}@192MiB+56MiB"]
        for name, part in zip("ab", parts):
            self.guests[name].run(
                f"cachalot serve --pool {part} --create --block-bytes 4KiB --capacity-blocks 64 > /tmp/part.log 2>&1 &"
            )
            self.wait_for(lambda: "ready" in self.guests[name].run("cat /tmp/part.log"), 20, f"keeper of {part}")
        for name, part in zip("ab", parts):
            self.guests[name].run(f"echo of {name} | cachalot put key --pool {part}")
        for name, part in zip("ab", parts):
            self.assertEqual(self.guests[name].run(f"cachalot get key --pool {part}"), f"of {name}")
        code, output = self.a.try_run(f"cachalot pool create {self.device}@128MiB+1MiB --block-bytes 4KiB --capacity 1MiB")
        self.assertEqual(code, 2, output)
        # The pool is there again after its keeper has ended.
        self.a.run(f"cachalot stop --pool {parts[0]}")
        self.a.run(f"cachalot serve --pool {parts[0]} --create --block-bytes 4KiB --capacity-blocks 64 > /tmp/part.log 2>&1 &")
        self.wait_for(lambda: "ready" in self.a.run("cat /tmp/part.log"), 20, "the next keeper")
        self.assertEqual(self.a.run(f"cachalot get key --pool {parts[0]}"), "of a")

    def test_a_pool_grows_and_shrinks_under_engines_of_both_hosts(self):
        whole = self.device
        self.device = f"{whole}@128MiB+48MiB"
        more = f"{whole}@176MiB+40MiB"
        self.a.run(
            f"cachalot pool create {self.device} --domain noncoherent --hosts 2 --clients 8 "
            f"--block-bytes {BLOCK} --size 48MiB --max-size 128MiB"
        )
        self.serve("a")
        self.serve("b", "--standby")

        def capacity(name):
            return self.info(name)["geometry"]["capacity_blocks"]

        before = capacity("a")
        for name in "ab":
            self.start_load(name, 40)
        for _ in range(3):
            self.a.run(f"cachalot pool grow {self.device} --device {more} --wait 30")
            self.assertGreater(capacity("b"), before + 500)
            time.sleep(3)
            self.a.run(f"cachalot pool shrink {self.device} --device {more} --wait 30")
            self.assertEqual(capacity("b"), before)
        self.a.run(f"cachalot pool grow {self.device} --device {more} --wait 30")
        grown = capacity("a")
        counts = [self.finish_load(name, 40) for name in "ab"]
        self.put("a", "last")
        # The keeper of the other machine has the device, too.
        self.a.run(f"cachalot stop --pool {self.device} --host 0 --timeout 30")
        self.wait_for(lambda: "rules" in self.log("b"), 60, "the standby")
        self.wait_for(lambda: capacity("b") == grown, 20, "the device")
        self.expect("b", "last")
        print(f"  {counts}; {before} blocks, {grown} with the device")
        self.check_clean("b")


class Nvdimm_(TwoHosts, unittest.TestCase):
    region_kind = Nvdimm


class Cxl_(TwoHosts, unittest.TestCase):
    region_kind = CxlType3


def stripped(program):
    """Symbols would fill the guests' memory."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    copy = FOLDER / pathlib.Path(program).name
    subprocess.run(["strip", "-o", copy, program], check=True)
    return copy


def main():
    global image
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    image = Image(FOLDER, [stripped(program) for program in sys.argv[1:3]])
    tests = [re.sub(r"^(Nvdimm|Cxl)\b", r"\1_", argument) for argument in sys.argv[3:]]
    unittest.main(argv=[sys.argv[0], *tests], verbosity=2)


if __name__ == "__main__":
    main()
