"""The examples for PyTorch with the real PyTorch on a processor, and a rehearsal of what is meant for a GPU.

usage: rehearsal_test.py FAKE_LIBCUDA LIBCACHALOT_TORCH LIBCACHALOT SOURCE_FOLDER    exit code 77: there is no PyTorch here
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FAKE, PLUGIN, LIBRARY, SOURCE = sys.argv[1:5]
if not all(importlib.util.find_spec(name) for name in ("torch", "numpy")):
    print("skipped: torch or numpy is not installed")
    sys.exit(77)

PRETEND = f"{SOURCE}/tests/torch/pretend_gpu.py"
ATTENTION, FINE_TUNE, LAYERWISE = (f"{SOURCE}/examples/torch/{name}.py" for name in ("contiguous_attention", "fine_tune", "layerwise_decode"))
GPU_TEST = f"{SOURCE}/tests/gpu/torch_gpu_test.py"
SMALL = ["--layers", "1", "--kv-heads", "2", "--heads", "4", "--steps", "2", "--requests", "2"]
TRAINING = ["--device", "cpu", "--layers", "2", "--width", "64", "--heads", "4", "--vocabulary", "200", "--batch", "2", "--tokens", "32", "--steps", "3"]
folder = tempfile.TemporaryDirectory()
# The modules that need no compiled part of the package, without it.
package = Path(folder.name) / "package/cachalot"
package.mkdir(parents=True)
for module in ("errors", "layerwise", "torch_allocator", "vmm"):
    shutil.copy(f"{SOURCE}/python/cachalot/{module}.py", package)
(package / "__init__.py").touch()  # comes before a package that is installed


def run(*command, **more):
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "FAKE_LIBCUDA": FAKE, "CACHALOT_LIBRARY": LIBRARY, "CACHALOT_TORCH_LIBRARY": PLUGIN,
                   "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


class Attention(unittest.TestCase):
    def attend(self, *arguments, prelude=(), **more):
        out = Path(folder.name) / "attention.json"
        ran = run(*prelude, ATTENTION, *SMALL, *arguments, "--json", str(out), **more)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return json.loads(out.read_text())

    def test_every_way_comes_to_the_same_in_every_layout(self):
        got = self.attend("--prompt", "1021", "--layouts", "per_layer,folded,folded_parts")
        for layout, figures in got["layouts"].items():
            self.assertEqual(figures["wrong"], [], layout)
            self.assertEqual(figures["same_bits"], {"range_each": True, "range_batch": True}, layout)
            self.assertGreater(min(figures["wrong_page_error"], figures["wrong_row_error"]), 2 * got["tolerance"])
            self.assertEqual(figures["sharing"]["shared_tokens"], figures["sharing"]["asked_tokens"])

    def test_requests_of_different_lengths(self):
        got = self.attend("--prompt", "300", "--spread", "200", "--requests", "3", "--layouts", "per_layer")
        self.assertFalse(got["layouts"]["per_layer"]["is_batched"])
        self.assertEqual(got["layouts"]["per_layer"]["same_bits"], {"range_each": True})

    def test_memory_that_is_not_what_was_written_is_noticed(self):
        # The last page's table entry is another one's from the start: the paged ways read something else than was written to the range.
        script = Path(folder.name) / "spoilt.py"
        script.write_text(Path(ATTENTION).read_text().replace("self.paged.write(i, n, row)", "self.paged.write(i, n - 1, row)"))
        ran = run(str(script), *SMALL, "--prompt", "200", "--layouts", "folded")
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("WRONG: range_each: error", ran.stdout)

    def test_the_path_for_a_gpu_is_rehearsed(self):
        got = self.attend("--prompt", "200", "--triton", "off", prelude=[PRETEND])
        self.assertEqual(got["device"], "no GPU, but a pretended one")

    @unittest.skipUnless(importlib.util.find_spec("triton"), "triton is not installed")
    def test_the_kernels_in_tritons_interpreter(self):
        script = Path(folder.name) / "can_interpret.py"
        script.write_text("import numpy\nint(numpy.array([1]))\n")
        if run("-W", "ignore", str(script)).returncode != 0:
            self.skipTest("this NumPy makes no number of an array of one, which Triton's interpreter relies on")
        got = self.attend("--prompt", "150", "--layouts", "folded", prelude=["-W", "ignore", PRETEND], TRITON_INTERPRET="1")
        figures = got["layouts"]["folded"]
        self.assertEqual(got["triton"], "yes")
        self.assertTrue(figures["same_bits"]["triton_range"])
        self.assertLess(figures["ways"]["triton_paged"]["error"], got["tolerance"])

    @unittest.skipUnless(importlib.util.find_spec("triton"), "triton is not installed")
    def test_a_triton_that_cannot_run_is_left_out_and_named(self):
        got = self.attend("--prompt", "200", "--layouts", "folded", prelude=[PRETEND], CC="/nowhere/cc")
        self.assertRegex(got["triton"], r"^\w+: .")
        self.assertNotIn("triton_range", got["layouts"]["folded"]["ways"])

    def test_what_is_not_here_is_said_in_a_line(self):
        ran = run(ATTENTION, *SMALL, "--device", "cpu", CACHALOT_LIBRARY="/nowhere/libcachalot.so")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)
        self.assertIn("/nowhere/libcachalot.so", ran.stderr)


class LayerwiseDecode(unittest.TestCase):
    # A token's keys of a layer are 4 KiB, so a prompt of 600 tokens takes two chunks.
    SMALL = ["--layers", "6", "--width", "32", "--heads", "4", "--kv-heads", "2", "--head-dim", "512", "--inner", "64", "--vocabulary", "100",
             "--prompts", "600,20", "--tokens", "12", "--runs", "1"]

    def decode(self, *arguments, script=LAYERWISE, status=0):
        out = Path(folder.name) / "layerwise.json"
        ran = run(str(script), *self.SMALL, *arguments, "--json", str(out))
        self.assertEqual(ran.returncode, status, ran.stdout + ran.stderr)
        return json.loads(out.read_text())

    def test_tokens_are_those_of_ordinary_kv_for_every_number_of_layers(self):
        got = self.decode("--resident", "0,1,2,3,4,6")
        self.assertEqual([len(tokens) for tokens in got["tokens"]], [12, 12])
        self.assertGreater(len(set(got["tokens"][0])), 3)  # the model says more than one thing
        for x in (0, 1, 2, 3, 4, 6):
            figures = got["results"][str(x)]
            self.assertTrue(figures["equal"] and figures["same_bits"], x)
            self.assertLessEqual(figures["device_bytes"] * 6, min(6, x + 2) * figures["all_bytes"], x)
            self.assertEqual(figures["decode_bytes_per_second"] is None, x >= 4, figures)
        for phase in ("prefill", "decode"):
            self.assertIn(got["chosen"][phase], range(7))

    def test_a_prefill_in_parts_reads_the_parts_before_it(self):
        got = self.decode("--resident", "0,2", "--prefill-tokens", "250")
        self.assertTrue(all(figures["equal"] for figures in got["results"].values()))

    def test_tokens_that_differ_are_noticed(self):
        script = Path(folder.name) / "keys_as_values.py"
        rows = "return self.views[request][layer]"
        script.write_text(Path(LAYERWISE).read_text().replace(rows, rows + "[:1] * 2"))
        self.assertFalse(self.decode("--resident", "1", script=script, status=1)["results"]["1"]["equal"])


class FineTune(unittest.TestCase):
    def test_the_training_itself(self):
        out = Path(folder.name) / "training.json"
        losses = {}
        for model in ("decoder", *(["llama"] if all(importlib.util.find_spec(name) for name in ("transformers", "peft")) else [])):
            for _ in range(2):
                ran = run(FINE_TUNE, *TRAINING, "--model", model, "--json", str(out))
                self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
                got = json.loads(out.read_text())["allocators"]["default"]["losses"]
                self.assertEqual(losses.setdefault(model, got), got)
            self.assertEqual(len(set(losses[model])), 3, losses)

    def test_losses_that_differ_are_seen(self):
        spec = importlib.util.spec_from_file_location("fine_tune", FINE_TUNE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        got = module.differences({"default": {"losses": [2.0, 4.0, 8.0]}, "expandable": {"losses": [2.0, 4.0, 8.0]}, "cachalot": {"losses": [2.0, 4.5, 8.5]}})
        self.assertEqual(got["expandable"], {"largest": 0.0, "first_step": None})
        self.assertEqual(got["cachalot"], {"largest": 0.125, "first_step": 1})
        self.assertEqual(module.differences({"default": {"losses": [2.0]}, "cachalot": {"losses": [float("nan")]}})["cachalot"]["largest"], float("inf"))


COMPILE = """
import importlib.util, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("decode_kernels", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
types = {"query": "*bf16", "memory": "*bf16", "bases": "*i64", "offsets": "*i64", "table": "*i32", "lengths": "*i32", "partial": "*fp32", "sums": "*fp32",
         "scale": "fp32", "row": "i32", "table_row": "i32", "span": "i32"}
for is_paged in (False, True):
    given = {"IS_PAGED": is_paged, "PAGE": 16, "GROUP": 4, "PADDED": 16, "HEAD": 128, "BLOCK": 64, "DOT": module.tl.bfloat16}
    names = module.decode.arg_names
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in types if name not in ("scale", "table_row")}
    source = ASTSource(module.decode, {**types, **{name: "constexpr" for name in given}}, given, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    print(len(re.findall(r"ld[.]global[.\\w]*b16 ", made)), len(re.findall(r"cp[.]async[.]cg[^;]*0x10", made)), len(re.findall("mma", made)))
source = ASTSource(module.merge, {"partial": "*fp32", "sums": "*fp32", "out": "*bf16", "parts": "i32", "PARTS": "constexpr", "HEAD": "constexpr"},
                   {"PARTS": 8, "HEAD": 128})
triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


class Kernels(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("triton"), "triton is not installed")
    def test_both_forms_compile_for_a_gpu_and_read_sixteen_bytes_at_a_time(self):
        script = Path(folder.name) / "compile.py"
        script.write_text(COMPILE)
        ran = run(str(script), f"{SOURCE}/examples/torch/decode_kernels.py", TRITON_CACHE_DIR=f"{folder.name}/triton")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for line in ran.stdout.splitlines():
            narrow, wide, products = map(int, line.split())
            self.assertEqual(narrow, 0, ran.stdout)
            self.assertGreater(min(wide, products), 0, ran.stdout)
        self.assertEqual(len(ran.stdout.splitlines()), 2)


class OnAGpu(unittest.TestCase):
    def test_every_check_runs_to_its_end(self):
        script = Path(folder.name) / "rehearse.py"
        script.write_text(f"""
import importlib.util, json, os, sys
sys.path.insert(0, os.path.dirname({GPU_TEST!r}))
spec = importlib.util.spec_from_file_location("torch_gpu_test", {GPU_TEST!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.SIDE, module.TIMES = 1024, 1
names = [name for name in module.CHECKS if name not in ("losses", "out_of_memory")]
for name in names + ["out_of_memory"]:  # which ends the process
    print("check", name, flush=True)
    module.CHECKS[name][0]()
""")
        ran = run("-W", "ignore", PRETEND, str(script))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertTrue(ran.stdout.splitlines()[-1].startswith('{"failures"'), ran.stdout)  # nothing is real, so much fails

    def test_without_a_gpu_it_is_skipped_and_knows_its_checks(self):
        self.assertEqual(run(GPU_TEST, "nothing").returncode, 2)
        self.assertIn("several_handles", run(GPU_TEST, "--list").stdout)

    def test_a_failed_check_does_not_stop_the_others(self):
        ran = run("-W", "ignore", PRETEND, GPU_TEST, "contexts", "mempool", TORCH_GPU_TEST_PRELUDE=PRETEND)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"passed  contexts[^\n]*\nFAILED  mempool[^\n]*\n        WRONG: PyTorch did not ask Cachalot")
        self.assertIn("1 of 2 passed", ran.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
