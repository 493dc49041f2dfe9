"""What a guest boots: Debian's kernel, and an initramfs with busybox, the modules for persistent memory, the programs
under test and the libraries that they are linked with."""

import pathlib
import shutil
import subprocess

# In the order in which they are loaded. Those that this kernel has built in are not there.
MODULES = [
    "libnvdimm", "nfit", "nd_btt", "nd_pmem", "device_dax", "dax_pmem",
    "cxl_core", "cxl_port", "cxl_acpi", "cxl_pci", "cxl_pmem", "cxl_mem",
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_console",
]  # fmt: skip

INIT = r"""#!/bin/sh
/bin/busybox mkdir -p /bin /proc /sys /dev /tmp /run /etc /usr/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
ifconfig lo 127.0.0.1 up
for module in MODULES; do
  [ -f /modules/$module.ko ] && insmod /modules/$module.ko
done
# The port is there some time after its driver, and can be opened some time after that.
until [ -c /dev/vport0p1 ] && (: <>/dev/vport0p1) 2>/dev/null; do sleep 0.1; done
exec 3<>/dev/vport0p1
echo "@@ready 0" >&3
# A line is TOKEN COMMAND; the answer is what it printed, then a line with the token and the exit code.
while read -r token command <&3; do
  sh -c "$command" </dev/null >/tmp/.output 2>&1 3>&-
  code=$?
  cat /tmp/.output >&3
  printf '\n@@%s %s\n' "$token" "$code" >&3
done
poweroff -f
"""


def _newc(path, mode, data=b"", inode=0):
    """A member of a cpio archive in the format `newc` (Linux, Documentation/driver-api/early-userspace)."""
    name = path.encode() + b"\0"
    fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def _libraries(program):
    """The shared libraries of a program, by the paths at which it looks for them."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        words = line.split()
        if "not found" in line:
            raise SystemExit(f"{program}: {line.strip()}")
        if "=>" in words:
            yield pathlib.Path(words[2])
        elif words and words[0].startswith("/"):
            yield pathlib.Path(words[0])


class Image:
    """The kernel and the initramfs in a folder, made once."""

    def __init__(self, folder, programs):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kernel_root = self._unpack_kernel()
        self.kernel = next((self.kernel_root / "boot").glob("vmlinuz-*"))
        self.initramfs = self.folder / "initramfs"
        self._pack([pathlib.Path(program) for program in programs])

    def _unpack_kernel(self):
        root = self.folder / "kernel"
        if any((root / "boot").glob("vmlinuz-*")):
            return root
        depends = subprocess.run(
            ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
        ).stdout
        package = next(line.split()[1] for line in depends.splitlines() if "Depends:" in line)
        subprocess.run(["apt-get", "download", "-qq", package], cwd=self.folder, check=True)
        archive = next(self.folder.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
        archive.unlink()
        return root

    def _pack(self, programs):
        files = {"init": INIT.replace("MODULES", " ".join(MODULES)).encode()}
        busybox = shutil.which("busybox")
        if busybox is None:
            raise SystemExit("busybox: not found; tools/setup --for vm installs it")
        files["bin/busybox"] = pathlib.Path(busybox).read_bytes()
        for module in MODULES:
            for found in self.kernel_root.rglob(f"{module}.ko"):
                files[f"modules/{module}.ko"] = found.read_bytes()
        tools = [pathlib.Path(found) for name in ("ndctl", "cxl") if (found := shutil.which(name))]
        for program in [*programs, *tools]:
            files[f"usr/bin/{program.name}"] = program.read_bytes()
            for library in _libraries(program):
                files[str(library).lstrip("/")] = library.read_bytes()
        folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents} - {"."}
        folders |= {"dev", "proc", "sys", "tmp"}
        with self.initramfs.open("wb") as out:
            for folder in sorted(folders):
                out.write(_newc(folder, 0o040755))
            # The kernel opens it for init before anything is mounted.
            for inode, (name, data) in enumerate(sorted(files.items()), 1):
                out.write(_newc(name, 0o100755, data, inode))
            out.write(_newc("bin/sh", 0o120777, b"busybox", len(files) + 1))
            out.write(_newc("TRAILER!!!", 0))
