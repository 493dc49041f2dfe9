"""A virtual machine that maps a memory region which other guests map, too, and runs commands.

The processor is emulated, and guests share the caches of this machine: what they show is how Cachalot lives on a real
device file under several kernels that end, stop and continue. They show nothing about caches that are not coherent.
"""

import json
import pathlib
import socket
import subprocess
import time

REGION_BYTES = 258 << 20  # of which 254 MiB are a device: label and alignment take the rest
GUEST_MEMORY = "640M"


class GuestError(Exception):
    pass


class Nvdimm:
    """A region behind NVDIMMs; each guest has one of its own with the same memory behind it."""

    name = "nvdimm"
    device = "/dev/dax0.0"

    def __init__(self, folder):
        self.memory = pathlib.Path(folder) / "region"
        with self.memory.open("wb") as out:
            out.truncate(REGION_BYTES)

    def machine(self, _):
        return [
            "-machine", "q35,nvdimm=on", "-m", f"{GUEST_MEMORY},slots=4,maxmem=4G",
            "-object", f"memory-backend-file,id=m,share=on,mem-path={self.memory},size={REGION_BYTES},align=2M",
            "-device", "nvdimm,memdev=m,label-size=128K",
        ]  # fmt: skip

    def prepare(self, image, folder):
        """Makes the namespace, whose label lies in the region: later guests find it at boot."""
        with Guest("prepare", image, self, folder) as guest:
            # --map=mem: the kernel's own data about the pages stays out of the shared memory.
            guest.run("ndctl create-namespace -m devdax --map=mem -e namespace0.0 -f")
            guest.run(f"test -c {self.device}")

    def attach(self, guest):
        guest.run(f"test -c {self.device}")


class CxlType3:
    """A region of an emulated CXL memory device. Each guest configures its own device; the memory behind is one."""

    name = "cxl"
    device = "/dev/dax0.0"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.memory = self.folder / "region"
        with self.memory.open("wb") as out:
            out.truncate(256 << 20)

    def machine(self, guest):
        # New ones at each boot: Linux 6.1 does not find a region again by its labels.
        labels = self.folder / f"labels-{guest}"
        with labels.open("wb") as out:
            out.truncate(1 << 20)
        # Two root ports: with one, Linux 6.1 chooses a decoder that this QEMU does not emulate.
        return [
            "-machine", "q35,cxl=on", "-m", f"{GUEST_MEMORY},slots=4,maxmem=8G",
            "-object", f"memory-backend-file,id=cm,share=on,mem-path={self.memory},size=256M",
            "-object", f"memory-backend-file,id=lsa,share=on,mem-path={labels},size=1M",
            "-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
            "-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2",
            "-device", "cxl-rp,port=1,bus=cxl.1,id=rp1,chassis=0,slot=3",
            "-device", "cxl-type3,bus=rp0,memdev=cm,lsa=lsa,id=p0",
            "-M", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G",
        ]  # fmt: skip

    def prepare(self, image, folder):
        pass

    def attach(self, guest):
        guest.run("cxl create-region -m -t pmem -d decoder0.0 -w 1 -g 256 mem0")
        guest.run("ndctl create-namespace -m devdax --map=mem -t pmem -r region0 -f")
        guest.run(f"test -c {self.device}")


class Guest:
    """A booted machine. run() waits for a command; start() does not."""

    def __init__(self, name, image, region, folder, wait=True):
        self.name = name
        self.folder = pathlib.Path(folder)
        self.console = self.folder / f"{name}.console"
        self._tokens = 0
        control, commands = (self.folder / f"{name}.{kind}" for kind in ("control", "commands"))
        for path in (control, commands):
            path.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
                *region.machine(name),
                "-kernel", str(image.kernel), "-initrd", str(image.initramfs),
                "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on nokaslr mitigations=off",
                "-nodefaults", "-no-reboot", "-display", "none",
                "-serial", f"file:{self.console}",
                # Not a serial line: that one loses bytes of what arrives at once while the guest is slow.
                "-chardev", f"socket,id=commands,path={commands},server=on,wait=off",
                "-device", "virtio-serial-pci,bus=pcie.0", "-device", "virtserialport,chardev=commands,name=commands",
                "-qmp", f"unix:{control},server=on,wait=off",
            ]  # fmt: skip
        )
        self._commands = self._connect(commands)
        self._control_socket = self._connect(control)
        self._control = self._control_socket.makefile("rw")
        self._control.readline()  # QEMU's greeting
        self._ask_machine("qmp_capabilities")
        self._pending = b""
        if wait:
            self.wait_for_boot()

    def wait_for_boot(self):
        self._read_answer("ready", 120)

    def _connect(self, path):
        deadline = time.monotonic() + 30
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(path))
                return connection
            except OSError:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise GuestError(f"{self.name}: qemu ended with {self.process.poll()}") from None
                time.sleep(0.05)

    def _ask_machine(self, command):
        self._control.write(json.dumps({"execute": command}) + "\n")
        self._control.flush()
        while True:
            answer = json.loads(self._control.readline())
            if "return" in answer or "error" in answer:
                return answer

    def _read_answer(self, token, timeout):
        end = f"@@{token} ".encode()
        self._commands.settimeout(1)
        deadline = time.monotonic() + timeout
        while True:
            at = self._pending.find(end)
            line_end = self._pending.find(b"\n", at) if at >= 0 else -1
            if line_end >= 0:
                output = self._pending[:at].decode(errors="replace").strip("\n")
                code = int(self._pending[at + len(end) : line_end])
                self._pending = self._pending[line_end + 1 :]
                return code, output
            if time.monotonic() > deadline:
                raise GuestError(f"{self.name}: no answer within {timeout} s; so far: {self._pending!r}")
            try:
                part = self._commands.recv(65536)
                if not part:
                    raise GuestError(self._ended())
                self._pending += part
            except TimeoutError:
                if self.process.poll() is not None:
                    raise GuestError(self._ended()) from None

    def _ended(self):
        said = self.console.read_text(errors="replace")[-2000:] if self.console.exists() else ""
        return f"{self.name}: the machine has ended; its console: {said}"

    def send(self, command):
        """Begins a command; finish() waits for it."""
        if "\n" in command:
            raise ValueError("a command is one line")
        self._tokens += 1
        self._commands.sendall(f"{self._tokens} {command}\n".encode())
        return self._tokens

    def finish(self, token, timeout=60):
        """The exit code and the output of a command that was sent."""
        return self._read_answer(str(token), timeout)

    def try_run(self, command, timeout=60):
        return self.finish(self.send(command), timeout)

    def run(self, command, timeout=60):
        """The output of a command that must succeed."""
        code, output = self.try_run(command, timeout)
        if code != 0:
            raise GuestError(f"{self.name}: `{command}` ended with {code}: {output}")
        return output

    def is_running(self):
        return self.process.poll() is None

    def pause(self):
        self._ask_machine("stop")

    def resume(self):
        self._ask_machine("cont")

    def kill(self):
        """As a power failure: no instruction of the guest runs any more."""
        self.process.kill()
        self.process.wait()
        for one in (self._control, self._control_socket, self._commands):
            one.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
