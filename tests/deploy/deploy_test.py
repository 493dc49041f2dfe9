"""The files of deploy/ are right: keepers start with their arguments, what they share agrees, schemas are kept.

usage: deploy_test.py ROOT CACHALOT
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: needs PyYAML, which tools/setup --for test brings to Debian's Python (python3-yaml)")
    sys.exit(77)

ROOT, CACHALOT = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
DEPLOY = ROOT / "deploy"
SECONDS = 60


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests():
    return [(path, resource) for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
            for resource in yaml.safe_load_all(path.read_text())]


def manifest(kind, name):
    (found,) = [resource for _, resource in manifests() if (resource["kind"], resource["metadata"]["name"]) == (kind, name)]
    return found


def compose_arguments(service):
    """As compose makes them of a service's command, where the environment has none of the variables."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(word)) for word in compose()["services"][service]["command"]]


def kubernetes_arguments():
    (container,) = manifest("DaemonSet", "keeper")["spec"]["template"]["spec"]["containers"]
    values = {**manifest("ConfigMap", "keeper")["data"], "POD_IP": "10.1.2.3"}
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]


def systemd_arguments():
    unit = (DEPLOY / "systemd/cachalot@.service").read_text()
    flags = re.search(r'^FLAGS="(.*?)"', (DEPLOY / "systemd/kv.conf").read_text(), re.DOTALL | re.MULTILINE)[1]
    command = re.search("^ExecStart=(.*)", unit, re.MULTILINE)[1].replace("%i", "kv").replace("$FLAGS", flags)
    return shlex.split(command.replace("\\\n", ""))[1:]


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]i)B?", text).groups()
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


class Keeper:
    """`cachalot` with arguments of the files, on a small pool of this test, on addresses of this machine."""

    def __init__(self, test, arguments, **environment):
        words = [word for argument in arguments for word in argument.split("=", 1)] if "=" in arguments[1] else list(arguments)
        replaced = {"--block-bytes": "64KiB", "--size": "64MiB", "--peer-listen": "tcp:127.0.0.1:0",
                    "--metrics": "127.0.0.1:0", "--peers": f"file:{test.folder}/peers",
                    "--cluster-key-file": str(test.folder / "cluster.key")}
        for at, word in enumerate(words[:-1]):
            if word == "--pool":
                self.pool = words[at + 1] = words[at + 1].replace("/dev/shm/", test.pools)
            words[at + 1] = replaced.get(word, words[at + 1])
        self.process = subprocess.Popen([CACHALOT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})
        test.addCleanup(self.end)
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            test.fail(f"{words}: {line}{self.process.stderr.read()}")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=SECONDS)

    def run(self, *words, given=None):
        return subprocess.run([CACHALOT, *words, "--pool", self.pool], input=given, capture_output=True, check=False,
                              timeout=SECONDS)


class Deploy(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cachalot_deploy_"))
        self.addCleanup(shutil.rmtree, self.folder)
        key = self.folder / "cluster.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        self.pools = f"/dev/shm/cachalot_deploy.{os.getpid()}."
        self.addCleanup(lambda: [path.unlink() for path in Path("/dev/shm").glob(f"cachalot_deploy.{os.getpid()}.*")])

    def test_every_flag_is_one_of_serve(self):
        said = subprocess.run([CACHALOT, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", said, re.MULTILINE))
        for arguments in (compose_arguments("keeper-a"), compose_arguments("keeper-b"), kubernetes_arguments(), systemd_arguments()):
            self.assertEqual(arguments[0], "serve")
            flags = {word.split("=")[0] for word in arguments if word.startswith("--")}
            self.assertIn("--cluster-key-file", flags)
            self.assertEqual(flags - known, set())

    def test_what_one_keeper_of_the_compose_file_has_the_other_one_finds(self):
        first, second = (Keeper(self, compose_arguments(name)) for name in ("keeper-a", "keeper-b"))
        self.assertEqual(first.run("put", "greeting", given=b"hello").returncode, 0)
        until = time.monotonic() + SECONDS
        while second.run("lookup", "greeting", "--storage").returncode != 0:
            self.assertLess(time.monotonic(), until, "the second keeper does not find it")
        self.assertEqual(second.run("get", "greeting").stdout, b"hello")

    def test_a_keeper_starts_as_in_kubernetes(self):
        keeper = Keeper(self, kubernetes_arguments())
        self.assertEqual(keeper.run("put", "greeting", given=b"hello").returncode, 0)

    def test_a_keeper_starts_as_by_systemd_and_says_when_it_is_ready(self):
        for name in (str(self.folder / "notify"), f"@cachalot_deploy.{os.getpid()}"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.bind(name.replace("@", "\0"))
                manager.settimeout(SECONDS)
                keeper = Keeper(self, systemd_arguments(), NOTIFY_SOCKET=name)
                self.assertEqual(manager.recv(100), b"READY=1")
                keeper.end()

    def test_a_keeper_whose_service_manager_is_gone_serves_and_says_so(self):
        for name, said in ((str(self.folder / "gone"), "No such file"), ("gone", "expected /PATH or @NAME"),
                           ("/" + "a" * 200, "expected /PATH or @NAME")):
            keeper = Keeper(self, systemd_arguments(), NOTIFY_SOCKET=name)
            keeper.process.send_signal(signal.SIGTERM)
            _, error = keeper.process.communicate(timeout=SECONDS)
            self.assertIn("the service manager was not told", error)
            self.assertIn(said, error)

    def test_the_image_is_healthy_while_its_keeper_answers(self):
        text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
        command = re.search(r"^HEALTHCHECK .*? CMD (.*)", text, re.MULTILINE)[1]
        keeper = Keeper(self, kubernetes_arguments())
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "cachalot").symlink_to(CACHALOT)

        def health():
            return subprocess.run(["sh", "-c", command], check=False, timeout=SECONDS, stdout=subprocess.DEVNULL, env={
                **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CACHALOT_POOL": keeper.pool}).returncode

        self.assertEqual(health(), 0)
        keeper.process.send_signal(signal.SIGSTOP)
        self.assertEqual(health(), 1)
        keeper.process.send_signal(signal.SIGCONT)
        self.assertEqual(health(), 0)
        keeper.end()
        self.assertEqual(health(), 1)

    def test_the_image_has_the_packages_that_the_program_is_linked_with(self):
        if not shutil.which("dpkg-query") or not shutil.which("readelf"):
            self.skipTest("needs dpkg-query and readelf")
        if "VERSION_ID=\"12\"" not in Path("/etc/os-release").read_text():
            self.skipTest("the image's packages are those of Debian 12")
        named = re.findall(r"[\w.+-]+", (DEPLOY / "Containerfile").read_text())
        dynamic = subprocess.run(["readelf", "-d", CACHALOT], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            owner = subprocess.run(["dpkg-query", "-S", f"*/{library}"], capture_output=True, text=True, check=True).stdout
            packages = {line.split(":")[0] for line in owner.splitlines()}
            self.assertTrue(packages & {*named, "libc6", "libgcc-s1"}, f"{library} is of {packages}, which the image has not")

    def test_each_keeper_of_the_compose_file_listens_at_its_own_address(self):
        for name in ("keeper-a", "keeper-b"):
            service = compose()["services"][name]
            words = compose_arguments(name)
            self.assertIn(f"tcp:{service['networks']['hosts']['ipv4_address']}:7400", words)
            self.assertEqual(service["environment"]["CACHALOT_POOL"], words[words.index("--pool") + 1])

    def test_the_engines_use_the_keepers_pools(self):
        lines = (DEPLOY / "compose.yaml").read_text().split("  # vllm:\n")[1].split("\n\n")[0].splitlines()
        engine = yaml.safe_load("\n".join(re.sub("^  # ?", "", line) for line in ["  # vllm:", *lines]))["vllm"]
        self.assertEqual((engine["pid"], engine["volumes"]), ("host", compose()["x-keeper"]["volumes"][:1]))
        words = compose_arguments("keeper-a")
        self.check_connector(engine["command"][-1], words[words.index("--pool") + 1])

        pod = manifest("Deployment", "vllm")["spec"]["template"]["spec"]
        keeper = manifest("DaemonSet", "keeper")["spec"]["template"]["spec"]
        self.assertTrue(pod["hostPID"] and keeper["hostPID"])
        self.assertEqual(pod["volumes"], keeper["volumes"][:1])
        self.check_connector(pod["containers"][0]["args"][-1], manifest("ConfigMap", "keeper")["data"]["CACHALOT_POOL"])

    def check_connector(self, text, pool):
        option = json.loads(text)
        self.assertEqual(option["kv_connector"], "CachalotConnector")
        self.assertEqual(option["kv_connector_extra_config"], {"pool": pool, "allow_foreign_pool": True})

    def test_the_manifests_agree_with_each_other(self):
        for _, resource in manifests():
            if resource["kind"] != "Namespace":
                self.assertEqual(resource["metadata"]["namespace"], "cachalot")
            if "template" not in resource.get("spec", {}):
                continue
            template = resource["spec"]["template"]
            self.assertEqual(resource["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
            volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
            for container in template["spec"]["containers"]:
                self.assertEqual({mount["name"] for mount in container.get("volumeMounts", [])}, volumes)
                ports = {port["name"] for port in container["ports"]}
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if probe in container:
                        self.assertIn(container[probe]["httpGet"]["port"], ports)
        labels = [template["metadata"]["labels"] for template in (manifest(kind, name)["spec"]["template"] for kind, name in (
            ("DaemonSet", "keeper"), ("Deployment", "etcd")))]
        for kind, name, at in (("NetworkPolicy", "keeper", 0), ("NetworkPolicy", "etcd", 1)):
            self.assertEqual(manifest(kind, name)["spec"]["podSelector"]["matchLabels"], labels[at])
        self.assertEqual(manifest("Service", "etcd")["spec"]["selector"], labels[1])
        values = manifest("ConfigMap", "keeper")["data"]
        self.assertTrue(values["REGISTRY"].startswith("etcd://etcd.cachalot.svc:2379/"))
        resources = manifest("DaemonSet", "keeper")["spec"]["template"]["spec"]["containers"][0]["resources"]
        for kind in ("requests", "limits"):
            self.assertEqual(bytes_of(resources[kind]["memory"]), bytes_of(values["POOL_SIZE"]) + (2 << 30))

    def test_the_manifests_keep_the_schemas_of_kubernetes(self):
        try:
            import kubernetes_validate
            from kubernetes_validate.utils import all_versions
        except ImportError:
            self.skipTest("needs kubernetes-validate: make test-deploy brings it")
        versions = all_versions()
        for version in (versions[0], versions[-1]):
            for path, resource in manifests():
                with self.subTest(path=path.name, kind=resource["kind"], version=version):
                    kubernetes_validate.validate(resource, version, strict=True)

    def test_systemd_accepts_the_unit(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("needs systemd-analyze")
        unit = (DEPLOY / "systemd/cachalot@.service").read_text().replace("/usr/local/bin/cachalot", str(CACHALOT))
        path = self.folder / "cachalot@kv.service"
        path.write_text(unit)
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False, timeout=SECONDS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
