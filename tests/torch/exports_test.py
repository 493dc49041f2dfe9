"""What libcachalot_torch.so shows is what its header declares, and what it needs has nothing of CUDA.

usage: exports_test.py NM READELF LIBCACHALOT_TORCH TORCH_H
"""

import re
import subprocess
import sys

nm, readelf, library, header = sys.argv[1:5]
symbols = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
shown = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
with open(header, encoding="utf-8") as file:
    declared = set(re.findall(r"^CACHALOT_API [^;(]*?(cachalot_torch_\w+)\(", file.read(), re.MULTILINE))
dynamic = subprocess.run([readelf, "-d", library], capture_output=True, text=True, check=True).stdout
needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
wrong = [name for name in needed if re.search("cuda|torch|nvidia", name)]

print(f"{len(shown)} shown, {len(declared)} declared; needs {' '.join(needed)}")
for what, names in (("shown and not declared", shown - declared), ("declared and not shown", declared - shown), ("needed", wrong)):
    if names:
        print(f"{what}: {' '.join(sorted(names))}")
sys.exit(0 if declared and shown == declared and not wrong else 1)
