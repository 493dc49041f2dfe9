#!/usr/bin/env python3
"""Two network namespaces, joined by links that a test can delay, cut and break. Needs root.

usage: netns_link.py serve --control SOCKET [--links N] [--mtu BYTES] [--no-offload] [--one-machine] [--seed N]
       netns_link.py send SOCKET COMMAND...
       netns_link.py exec SOCKET a|b PROGRAM [ARGUMENT...]
       netns_link.py bench [--mtu BYTES] [--no-offload]

A link is a TUN device in each namespace ("a" and "b"), and this program, which carries packets between the two. Link N
has the device linkN and the addresses 10.77.N.1 (a) and 10.77.N.2 (b). Link N is independent of the others.

serve prints one line of JSON when the links are up, and ends with its standard input, or at SIGTERM. While it runs,
SOCKET.a.net, SOCKET.a.mnt, SOCKET.b.net and SOCKET.b.mnt are the namespaces, for setns(). exec replaces itself by a
program inside. Each side looks like a machine of its own: another boot id, and a /dev/shm of its
own; --one-machine leaves both as they are. The namespaces have no names, so the kernel removes them with their
processes, whatever ends those.

A command is a line: VERB [VALUE] [link=N] [way=ab|ba]; without link and way it is for all links and both ways. It is for
packets that this program takes from a device after its answer.

  delay MS      each packet arrives so much later (0: none)
  drop P        each packet is lost with this probability
  rate BYTES    a second; 0: as fast as it goes. The queue before it holds 1/20 s, at least 4 packets
  cut           nothing passes, nor what is on its way
  half-open way=ab    only packets from a to b pass
  heal          all of the above ends
  stats         packets and bytes that passed, packets that were lost or are on their way, by link and way

With offload (the default) the kernel gives and takes TCP segments of up to 64 KiB as one packet, which is what makes the
link fast. drop then loses them whole. --no-offload carries packets of the MTU.

example: netns_link.py serve --control /run/link.sock &  netns_link.py send /run/link.sock delay 10 way=ab
exit: 0; 2 bad usage; 77 not root, or no namespaces or TUN devices here
"""
import argparse
import collections
import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1
TUNSETIFF, TUNSETOFFLOAD = 0x400454ca, 0x400454d0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891c
SIOCSIFMTU, SIOCSIFTXQLEN = 0x8922, 0x8943
IFF_UP = 1
SIDES, WAYS, KINDS = ("a", "b"), ("ab", "ba"), ("net", "mnt")
NOT_HERE = 77
MOST_PACKET_BYTES = 65536 + 64
BATCH = 64  # packets of one way before the other has its turn
QUEUE_S, LEAST_QUEUE_PACKETS = 0.05, 4
LIBC = ctypes.CDLL(None, use_errno=True)


class Unsupported(Exception):
    """This user or kernel cannot do it."""


def check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def address(side, link):
    return f"10.77.{link}.{SIDES.index(side) + 1}"


# --- A side: a process that holds the namespaces -----------------------------------------------------


def set_up_device(name, ipv4, mtu):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        def set_it(what, value):
            fcntl.ioctl(any_socket, what, struct.pack("16s16s8x", name.encode(), value))

        def inet(text):
            return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
        if ipv4:
            set_it(SIOCSIFMTU, struct.pack("=i12x", mtu))
            set_it(SIOCSIFTXQLEN, struct.pack("=i12x", 10000))
            set_it(SIOCSIFADDR, inet(ipv4))
            set_it(SIOCSIFNETMASK, inet("255.255.255.0"))
        flags = struct.pack("16s16s8x", name.encode(), b"")
        flags = struct.unpack("16sH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, flags)[:18])[1]
        set_it(SIOCSIFFLAGS, struct.pack("=H14x", flags | IFF_UP))


def open_tun(name, offload):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = IFF_TUN | IFF_NO_PI | (IFF_VNET_HDR if offload else 0)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if offload:
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


def become_machine():
    """Another boot id and another /dev/shm than the machine's."""
    check(LIBC.mount(b"none", b"/dev/shm", b"tmpfs", 0, None), "mounting /dev/shm")
    name = f"/dev/shm/.boot_id.{os.getpid()}"
    with open("/proc/sys/kernel/random/uuid", encoding="ascii") as uuid, open(name, "w", encoding="ascii") as file:
        file.write(uuid.read())
    boot_id = b"/proc/sys/kernel/random/boot_id"
    check(LIBC.mount(name.encode(), boot_id, None, MS_BIND, None), "mounting a boot id")
    os.unlink(name)


def hold_side(side, options, to_parent):
    """In the child. Sends the TUN devices to the parent, and lives until it is killed."""
    check(LIBC.unshare(CLONE_NEWNET | CLONE_NEWNS), "unshare")
    check(LIBC.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount --make-rslave /")
    # UCX looks for network devices there, and would see those of the machine.
    check(LIBC.mount(b"none", b"/sys", b"sysfs", 0, None), "mounting /sys")
    if not options.one_machine:
        become_machine()
    set_up_device("lo", None, 0)
    # The kernel would send packets of its own on the links: router solicitations.
    with contextlib.suppress(FileNotFoundError), open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w",
                                                      encoding="ascii") as file:
        file.write("1")
    fds = []
    for link in range(options.links):
        fds.append(open_tun(f"link{link}", options.offload))
        set_up_device(f"link{link}", address(side, link), options.mtu)
    socket.send_fds(to_parent, [b"up"], fds)
    while True:
        signal.pause()


def start_side(side, options):
    """Returns (process id, TUN devices)."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else it ended before the line above
                hold_side(side, options, theirs)
        except OSError as error:
            theirs.send(f"side {side}: {error}".encode())
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        text, fds, _, _ = socket.recv_fds(ours, 1000, options.links)
    if text != b"up":
        raise Unsupported(text.decode() or f"side {side} ended")
    return pid, fds


# --- The links -----------------------------------------------------------------------------------------


class Way:
    """Packets of one link in one direction."""

    def __init__(self, source, target, chance):
        self.source, self.target, self.chance = source, target, chance
        self.queue, self.queued_bytes, self.free_at = collections.deque(), 0, 0.0
        self.packets = self.bytes = self.lost = 0
        self.heal()

    def heal(self):
        self.delay_s, self.drop, self.rate, self.is_cut = 0.0, 0.0, 0.0, False

    def deliver(self, packet):
        if self.is_cut:
            self.lost += 1
            return
        try:
            os.write(self.target, packet)
        except OSError:  # the device is full, or its packet damaged
            self.lost += 1
            return
        self.packets += 1
        self.bytes += len(packet)

    def take(self, packet):
        if self.is_cut or (self.drop and self.chance() < self.drop):
            self.lost += 1
            return
        if not (self.delay_s or self.rate or self.queue):
            self.deliver(packet)
            return
        now = time.monotonic()
        due = now + self.delay_s
        if self.rate:
            waiting = max(self.free_at - now, 0.0)
            if waiting > max(QUEUE_S, LEAST_QUEUE_PACKETS * len(packet) / self.rate):
                self.lost += 1
                return
            self.free_at = now + waiting + len(packet) / self.rate
            due = self.free_at + self.delay_s
        # Packets stay in order, also when the delay has just become shorter.
        if self.queue:
            due = max(due, self.queue[-1][0])
        self.queue.append((due, packet))

    def carry(self):
        """Takes what is there. A full batch is not the end: the caller comes back."""
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, MOST_PACKET_BYTES)
            except BlockingIOError:
                return
            self.take(packet)

    def deliver_due(self):
        """Returns when the next packet is due, or None."""
        while self.queue:
            due = self.queue[0][0]
            if due > time.monotonic():
                return due
            self.deliver(self.queue.popleft()[1])
        return None


class Links:
    def __init__(self, a_fds, b_fds, seed):
        chance = random.Random(seed).random
        self.ways = {(link, way): Way(*((a, b) if way == "ab" else (b, a)), chance)
                     for link, (a, b) in enumerate(zip(a_fds, b_fds)) for way in WAYS}

    def select(self, words):
        """The ways that link=N and way=ab name."""
        ways = dict(self.ways)
        for word in words:
            name, _, value = word.partition("=")
            if name == "link" and value.isdigit():
                ways = {key: way for key, way in ways.items() if key[0] == int(value)}
            elif name == "way" and value in WAYS:
                ways = {key: way for key, way in ways.items() if key[1] == value}
            else:
                raise ValueError(f"'{word}', expected link=N or way=ab|ba")
        if not ways:
            raise ValueError(f"no such link: {' '.join(words)}")
        return ways

    def command(self, line):
        """Executes a command line. Returns the answer's text."""
        verb, *words = line.split() or [""]
        if verb in ("delay", "drop", "rate"):
            if not words:
                raise ValueError(f"{verb} needs a value")
            value = float(words.pop(0))
            most = 1.0 if verb == "drop" else 1e12
            if not 0 <= value <= most:
                raise ValueError(f"{verb} {value:g}, expected 0 to {most:g}")
            name, factor = {"delay": ("delay_s", 1e-3), "drop": ("drop", 1), "rate": ("rate", 1)}[verb]
            for way in self.select(words).values():
                setattr(way, name, value * factor)
        elif verb == "cut":
            for way in self.select(words).values():
                way.is_cut = True
        elif verb == "half-open":
            if sum(word.startswith("way=") for word in words) != 1:
                raise ValueError("half-open needs way=ab or way=ba: the way that still passes")
            passes = self.select(words)
            links = [word for word in words if word.startswith("link=")]
            for key, way in self.select(links).items():
                way.is_cut = key not in passes
        elif verb == "heal":
            for way in self.select(words).values():
                way.heal()
        elif verb == "stats":
            return json.dumps({f"{link} {name}": {"packets": way.packets, "bytes": way.bytes, "lost": way.lost, "queued": len(way.queue)}
                               for (link, name), way in self.select(words).items()})
        else:
            raise ValueError(f"unknown command '{verb}', expected delay, drop, rate, cut, half-open, heal or stats")
        return "ok"


class Server:
    """Carries packets and answers commands, in one thread."""

    def __init__(self, links, listener):
        self.links, self.listener, self.clients = links, listener, {}
        self.poll = select.epoll()
        for way in links.ways.values():
            self.poll.register(way.source, select.EPOLLIN)
        self.by_source = {way.source: way for way in links.ways.values()}
        self.poll.register(listener, select.EPOLLIN)
        with contextlib.suppress(PermissionError):  # a file, or /dev/null, has no end to wait for
            self.poll.register(sys.stdin, select.EPOLLIN)

    def answer(self, fd):
        client, text = self.clients[fd]
        some = client.recv(4096)
        *lines, rest = (text + some).split(b"\n")
        self.clients[fd] = client, rest
        try:
            for line in lines:
                try:
                    said = self.links.command(line.decode())
                except ValueError as error:
                    said = f"error: {error}"
                client.sendall(said.encode() + b"\n")
        except OSError:
            some = b""
        if not some or len(rest) > 4096:
            self.poll.unregister(fd)
            client.close()
            del self.clients[fd]

    def run(self):
        due = None
        while True:
            # epoll's timeout has whole milliseconds and is rounded up; the last one is spent in select().
            wait = -1.0 if due is None else due - time.monotonic()
            if 0 < wait < 0.002:
                select.select([self.poll], [], [], wait)
                wait = 0
            for fd, _ in self.poll.poll(-1 if due is None else max(wait - 0.001, 0)):
                if fd in self.by_source:
                    self.by_source[fd].carry()
                elif fd == self.listener.fileno():
                    client, _ = self.listener.accept()
                    self.clients[client.fileno()] = client, b""
                    self.poll.register(client, select.EPOLLIN)
                elif fd == sys.stdin.fileno():
                    if not os.read(fd, 4096):
                        return
                else:
                    self.answer(fd)
            due = min((at for way in self.links.ways.values() if (at := way.deliver_due())), default=None)


def serve(options):
    def end(*_):
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    if os.geteuid() != 0:
        raise Unsupported("needs root, for network namespaces and TUN devices")
    pids, fds = [], []
    try:
        for side in SIDES:
            pid, side_fds = start_side(side, options)
            pids.append(pid)
            fds.append(side_fds)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options.control)
        listener.listen()
        for side, pid in zip(SIDES, pids):
            for kind in KINDS:
                os.symlink(f"/proc/{pid}/ns/{kind}", f"{options.control}.{side}.{kind}")
        print(json.dumps({
            "seed": options.seed,
            "sides": {side: {"pid": pid, "addresses": [address(side, link) for link in range(options.links)]}
                      for side, pid in zip(SIDES, pids)}}), flush=True)
        Server(Links(*fds, options.seed), listener).run()
    finally:
        for name in [options.control] + [f"{options.control}.{side}.{kind}" for side in SIDES for kind in KINDS]:
            with contextlib.suppress(OSError):
                os.unlink(name)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# --- For programs that use it -----------------------------------------------------------------------


def enter(control, side, kinds):
    """This thread is inside of a side's namespaces from here on."""
    for kind in kinds:
        with open(f"{control}.{side}.{kind}", encoding="ascii") as namespace:
            check(LIBC.setns(namespace.fileno(), 0), f"entering the {kind} namespace of side {side}")


def send(control, command):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(control)
        client.sendall(command.encode() + b"\n")
        with client.makefile() as answers:
            answer = answers.readline().rstrip("\n")
    if answer == "" or answer.startswith("error: "):
        raise ValueError(answer.removeprefix("error: ") or "netns_link has ended")
    return answer


def exec_inside(control, side, program):
    folder = os.getcwd()
    enter(control, side, KINDS)
    os.chdir(folder)
    os.execvp(program[0], program)


class NetnsLink:
    """The links, as long as a with block lasts. Raises Unsupported where there can be none."""

    def __init__(self, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="netns_link.")
        self.control = os.path.join(self.folder.name, "control")
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "serve", "--control", self.control, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            errors = self.process.communicate()[1].strip()
            self.folder.cleanup()
            raise (Unsupported if self.process.returncode == NOT_HERE else RuntimeError)(errors)
        self.up = json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()  # closes its standard input
        self.folder.cleanup()

    def send(self, command):
        return send(self.control, command)

    def stats(self):
        return json.loads(self.send("stats"))

    def pid(self, side):
        return self.up["sides"][side]["pid"]

    def address(self, side, link=0):
        return self.up["sides"][side]["addresses"][link]

    def socket(self, side, kind=socket.SOCK_STREAM):
        """A socket belongs to the namespace in which it was made, whatever thread uses it."""
        with open("/proc/thread-self/ns/net", encoding="ascii") as home:
            enter(self.control, side, ("net",))
            try:
                return socket.socket(socket.AF_INET, kind)
            finally:
                check(LIBC.setns(home.fileno(), 0), "going back to the own namespace")

    def command(self, side, *program):
        """The command line that runs a program inside."""
        return [sys.executable, os.path.abspath(__file__), "exec", self.control, side, *program]


def bench(options):
    """TCP from a to b for two seconds, from another process; MB/s, and the time of an echo."""
    flags = ["--mtu", str(options.mtu)] + ([] if options.offload else ["--no-offload"])
    with NetnsLink(*flags) as link, link.socket("b") as listener, link.socket("a") as source:
        listener.bind((link.address("b"), 0))
        listener.listen()
        source.connect(listener.getsockname())
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target, _ = listener.accept()
        with target:
            rounds = []
            for _ in range(200):
                start = time.monotonic()
                source.send(b"x")
                target.send(target.recv(1))
                source.recv(1)
                rounds.append(time.monotonic() - start)
            if os.fork() == 0:
                end, block = time.monotonic() + 2, bytes(1 << 20)
                while time.monotonic() < end:
                    source.sendall(block)
                source.shutdown(socket.SHUT_WR)
                os._exit(0)
            got, room, start = 0, bytearray(1 << 20), time.monotonic()
            while some := target.recv_into(room):
                got += some
            seconds = time.monotonic() - start
        os.wait()
        print(f"mtu {options.mtu}, {'with' if options.offload else 'without'} offload: {got / seconds / 1e6:.0f} MB/s, "
              f"echo {sorted(rounds)[100] * 1e6:.0f} us (median)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="what", required=True)
    one = {what: verbs.add_parser(what) for what in ("serve", "send", "exec", "bench")}
    for what in ("serve", "bench"):
        one[what].add_argument("--mtu", type=int, default=1500)
        one[what].add_argument("--no-offload", dest="offload", action="store_false")
    one["serve"].add_argument("--control", required=True)
    one["serve"].add_argument("--links", type=int, default=1, choices=range(1, 17), metavar="N")
    one["serve"].add_argument("--one-machine", action="store_true")
    one["serve"].add_argument("--seed", type=int, default=random.randrange(1 << 32))
    for what in ("send", "exec"):
        one[what].add_argument("control")
    one["send"].add_argument("command", nargs="+")
    one["exec"].add_argument("side", choices=SIDES)
    one["exec"].add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not 576 <= getattr(options, "mtu", 1500) <= 65535:
        parser.error(f"--mtu {options.mtu}, expected 576 to 65535")
    if options.what == "serve":
        serve(options)
    elif options.what == "send":
        print(send(options.control, " ".join(options.command)))
    elif options.what == "exec":
        exec_inside(options.control, options.side, options.program)
    else:
        bench(options)


if __name__ == "__main__":
    try:
        main()
    except Unsupported as error:
        print(f"netns_link: {error}", file=sys.stderr)
        sys.exit(NOT_HERE)
    except (OSError, ValueError) as error:
        print(f"netns_link: {error}", file=sys.stderr)
        sys.exit(2)
