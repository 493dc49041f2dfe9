"""The links of netns_link.py do what a command says. Needs root; exit 77 where there can be no links."""
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from netns_link import NOT_HERE, NetnsLink, Unsupported

LONG_S = 30  # only a failure waits so long


def echo(listener):
    """Answers each connection with what it sends, until the listener is shut down."""
    def answer(client):
        with client:
            while some := client.recv(1 << 16):
                client.sendall(some)
    try:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
    except OSError:
        pass


class Case(unittest.TestCase):
    OPTIONS = []

    def setUp(self):
        self.link = NetnsLink(*self.OPTIONS)
        self.addCleanup(self.link.__exit__)

    def listen(self, link=0):
        listener = self.link.socket("b")
        listener.bind((self.link.address("b", link), 0))
        listener.listen()
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        self.addCleanup(listener.close)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)
        return listener.getsockname()

    def connect(self, link=0):
        """A connection from a to an echo in b."""
        source = self.link.socket("a")
        self.addCleanup(source.close)
        source.settimeout(LONG_S)
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        source.connect(self.listen(link))
        return source

    def datagrams(self):
        """Sockets in a and b."""
        ends = []
        for side in "ab":
            end = self.link.socket(side, socket.SOCK_DGRAM)
            self.addCleanup(end.close)
            end.bind((self.link.address(side), 0))
            end.settimeout(LONG_S)
            ends.append(end)
        return ends

    def echo_s(self, source, text=b"x"):
        start = time.monotonic()
        source.sendall(text)
        self.assertEqual(source.recv(100), text)
        return time.monotonic() - start

    def is_silent(self, end, seconds=0.5):
        return not select.select([end], [], [], seconds)[0]


class OneLink(Case):
    def test_a_delay_is_seen_by_each_packet_and_ends(self):
        source = self.connect()
        self.echo_s(source)
        self.link.send("delay 10")
        slow = [self.echo_s(source) for _ in range(20)]
        self.link.send("delay 30 way=ba")
        slower = [self.echo_s(source) for _ in range(10)]
        self.link.send("heal")
        fast = [self.echo_s(source) for _ in range(20)]
        print(f"echo: {min(slow) * 1e3:.1f} to {max(slow) * 1e3:.1f} ms with 10 ms each way, "
              f"{min(slower) * 1e3:.1f} ms with 10 and 30, {min(fast) * 1e3:.2f} ms with none")
        self.assertGreaterEqual(min(slow), 0.020)
        self.assertGreaterEqual(min(slower), 0.040)
        self.assertLess(min(fast), 0.010)

    def test_a_link_that_was_cut_heals_and_its_connections_go_on(self):
        source = self.connect()
        self.echo_s(source)
        self.link.send("cut")
        source.sendall(b"after the cut")
        self.assertTrue(self.is_silent(source))
        self.link.send("heal")
        self.assertEqual(source.recv(100), b"after the cut")
        self.assertGreater(self.link.stats()["0 ab"]["lost"], 0)

    def test_a_cut_also_ends_packets_on_their_way(self):
        a, b = self.datagrams()
        self.link.send("delay 300")
        a.sendto(b"late", b.getsockname())
        deadline = time.monotonic() + LONG_S
        while not self.link.stats()["0 ab"]["queued"]:
            self.assertLess(time.monotonic(), deadline)
        self.link.send("cut")
        self.assertTrue(self.is_silent(b, 1))
        self.assertEqual(self.link.stats()["0 ab"]["lost"], 1)

    def test_a_half_open_link_passes_one_way_only(self):
        a, b = self.datagrams()
        for passes in ("ab", "ba"):
            self.link.send(f"half-open way={passes}")
            sender, receiver = (a, b) if passes == "ab" else (b, a)
            sender.sendto(b"this way", receiver.getsockname())
            receiver.sendto(b"not that way", sender.getsockname())
            self.assertEqual(receiver.recv(100), b"this way")
            self.assertTrue(self.is_silent(sender))
        self.link.send("heal")
        a.sendto(b"both", b.getsockname())
        self.assertEqual(b.recv(100), b"both")

    def test_a_connection_is_not_made_over_a_half_open_link(self):
        address = self.listen()
        self.link.send("half-open way=ab")
        source = self.link.socket("a")
        self.addCleanup(source.close)
        source.settimeout(1)
        with self.assertRaises(TimeoutError):
            source.connect(address)

    def test_drop_loses_its_part_of_the_packets(self):
        a, b = self.datagrams()
        self.link.send("drop 0.5 way=ab")
        for i in range(400):
            a.sendto(b"x", b.getsockname())
        deadline = time.monotonic() + LONG_S
        # A command is for packets that the link takes later.
        while (stats := self.link.stats()["0 ab"])["packets"] + stats["lost"] < 400:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(stats["packets"] + stats["lost"], 400)
        self.assertGreater(stats["lost"], 120)
        self.assertLess(stats["lost"], 280)
        self.link.send("heal")
        while b.recv(100) != b"last":
            a.sendto(b"last", b.getsockname())

    def test_a_stream_arrives_whole_over_a_link_that_loses_packets(self):
        source = self.connect()
        self.link.send("drop 0.05")
        deadline = time.monotonic() + LONG_S
        while min(self.link.stats()[way]["lost"] for way in ("0 ab", "0 ba")) == 0:
            self.assertLess(time.monotonic(), deadline)
            sent, got = os.urandom(100_000), b""
            thread = threading.Thread(target=source.sendall, args=(sent,))
            thread.start()
            while len(got) < len(sent):
                some = source.recv(1 << 16)
                self.assertTrue(some)
                got += some
            thread.join()
            self.assertEqual(got, sent)

    def test_a_rate_is_not_exceeded(self):
        source = self.connect()
        self.link.send("rate 4e6 way=ab")
        start, left = time.monotonic(), 2_000_000
        thread = threading.Thread(target=source.sendall, args=(bytes(left),))
        thread.start()
        while left:
            left -= len(source.recv(left))
        thread.join()
        seconds = time.monotonic() - start
        print(f"rate: {2 / seconds:.2f} MB/s, limited to 4")
        self.assertGreaterEqual(seconds, 0.4)

    def test_wrong_commands_are_answered_and_change_nothing(self):
        source = self.connect()
        for command in ("", "dleay 1", "delay", "delay x", "delay -1", "drop 1.5", "cut link=1", "cut way=ac",
                        "half-open", "half-open way=ab way=ba", "heal 7", "delay nan", "cut 1"):
            with self.assertRaises(ValueError, msg=command) as raised:
                self.link.send(command)
            self.assertNotIn("ended", str(raised.exception))
        self.echo_s(source)

    def test_each_side_is_another_machine(self):
        def seen(side):
            return subprocess.run(
                self.link.command(side, "sh", "-c", "cat /proc/sys/kernel/random/boot_id; ls /sys/class/net; pwd;"
                                                    "ls -A /dev/shm; touch /dev/shm/file"),
                capture_output=True, text=True, check=True).stdout.split()
        a, b = seen("a"), seen("b")
        self.assertEqual(a[1:], ["link0", "lo", os.getcwd()])
        self.assertEqual(b[1:], a[1:])
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            self.assertEqual(len({a[0], b[0], file.read().strip()}), 3)

    def test_nothing_remains_of_a_link_that_was_killed(self):
        link = NetnsLink()
        pids = [link.pid(side) for side in "ab"]
        link.process.send_signal(signal.SIGKILL)
        link.__exit__()
        deadline = time.monotonic() + LONG_S
        while any(os.path.exists(f"/proc/{pid}/ns/net") for pid in pids):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class TwoLinks(Case):
    OPTIONS = ["--links", "2"]

    def test_each_link_has_its_own_faults(self):
        first, second = self.connect(0), self.connect(1)
        self.assertNotEqual(first.getpeername()[0], second.getpeername()[0])
        self.link.send("cut link=0")
        self.echo_s(second)
        first.sendall(b"x")
        self.assertTrue(self.is_silent(first))
        self.link.send("delay 20 link=1 way=ab")
        self.assertGreaterEqual(self.echo_s(second), 0.020)
        self.link.send("heal link=0")
        self.assertEqual(first.recv(10), b"x")
        self.assertGreaterEqual(self.echo_s(second), 0.020)


class SmallPackets(Case):
    OPTIONS = ["--no-offload", "--one-machine"]

    def test_without_offload_each_packet_has_the_mtu(self):
        source = self.connect()
        sent, left = 1_000_000, 1_000_000
        thread = threading.Thread(target=source.sendall, args=(bytes(sent),))
        thread.start()
        while left:
            left -= len(source.recv(left))
        thread.join()
        stats = self.link.stats()["0 ab"]
        self.assertGreater(stats["packets"], sent / 1500)
        boot_id = "/proc/sys/kernel/random/boot_id"
        inside = subprocess.run(self.link.command("a", "cat", boot_id), capture_output=True, text=True, check=True)
        with open(boot_id, encoding="ascii") as file:
            self.assertEqual(inside.stdout, file.read())


if __name__ == "__main__":
    try:
        NetnsLink().__exit__()
    except Unsupported as error:
        print(f"skipped: {error}")
        sys.exit(NOT_HERE)
    unittest.main()
