"""Runs the commands of docs/guide/llama.md as they are printed, and compares what they print.

usage: guide_test.py PAGE --build DIR [--print]

--print shows what the commands print now instead of comparing it. The page's pool and ports are
replaced by ones that nobody else uses, and its build folder by DIR. Ids, times of day and timings may
differ, all else may not.
"""
import argparse
import json
import os
import re
import subprocess
import sys

CHECKOUT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.append(os.path.join(CHECKOUT, "examples/vllm"))
from ports import free_port  # noqa: E402

BEGIN, END = "guide_test.py runs what follows", "guide_test.py: end"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEPARATOR = "---- end of the block"


def steps_of(page):
    """[(commands, what they print)]"""
    text = page[page.index(BEGIN):page.index(END)]
    steps = []
    for language, content in BLOCK.findall(text):
        if language == "sh":
            steps.append([content, ""])
        else:
            steps[-1][1] = content
    return steps


def run(steps, build):
    """What each step's commands print, all in one shell as a reader would type them."""
    pool = f"/dev/shm/cachalot_guide_{os.getpid()}"
    # Job control, for %2; without it kill takes process numbers only. Nothing stays behind.
    begin = "set -m\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\ntrap 'exit 1' TERM\n"
    script = begin + "".join(f"{commands}\necho '{SEPARATOR}'\n" for commands, _ in steps)
    script = script.replace("/dev/shm/kv", pool).replace("$PWD/build/release", build)
    for port in ("8081", "8082"):
        script = script.replace(port, str(free_port()))
    try:
        shell = subprocess.run(["timeout", "200", "bash", "-c", script], cwd=CHECKOUT, capture_output=True,
                               text=True, check=False)
    finally:
        if os.path.exists(pool):
            os.remove(pool)
    if shell.returncode != 0:
        raise SystemExit(f"the commands end with {shell.returncode}:\n{shell.stderr}")
    return [output.strip() for output in shell.stdout.split(SEPARATOR)[:-1]]


def continues(lines, event):
    """Adds the text of a stream's event to the one before: how much comes at a time is not said."""
    def content(value):
        choices = value.get("choices") if isinstance(value, dict) else None
        return choices[0].get("delta", {}).get("content") if choices else None
    if not lines or content(lines[-1]) is None or content(event) is None:
        return False
    lines[-1]["choices"][0]["delta"]["content"] += content(event)
    return True


def lines_of(output):
    """The JSON of each line, without what differs from run to run; other lines as they are."""
    lines = []
    for line in output.split("\n"):
        line = line.strip()
        line = line[6:] if line.startswith("data: ") else line
        if line.startswith("{"):
            value = {k: v for k, v in json.loads(line).items() if k not in ("id", "created", "timings")}
            if not continues(lines, value):
                lines.append(value)
        elif line and not line.startswith(("ready ", "ended ")):  # the keeper and the engines, behind
            lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page")
    parser.add_argument("--build", required=True)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    with open(options.page, encoding="utf-8") as file:
        steps = steps_of(file.read())
    if len(steps) < 5:
        raise SystemExit(f"{options.page}: {len(steps)} steps, expected at least 5")
    outputs = run(steps, os.path.abspath(options.build))
    if len(outputs) != len(steps):
        raise SystemExit(f"{len(outputs)} of {len(steps)} steps ran")
    wrong = 0
    for (commands, expected), output in zip(steps, outputs):
        if options.print:
            print(f"{commands}\n{output}\n")
        elif lines_of(output) != lines_of(expected):
            wrong += 1
            print(f"{commands}\nprints\n{output}\nexpected\n{expected}")
    print(f"{len(steps)} steps, {wrong} with other output than the page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
