"""What a page prints: its blocks of commands and code, and what it says of their tests."""

import re
from typing import List, NamedTuple

#: What the first line of a block of shell commands begins with, after assignments.
COMMAND = re.compile(r"(?:[A-Z_]+=\S*\s+)*(?:cachalot(?:-\w+)?|make|cmake|ctest|python3?|pip|vllm|curl|numactl|printf|echo|"
                     r"git|apt-get|docker|podman|podman-compose|kubectl|systemctl|sudo|cc|g\+\+|llama-server|export|source|\.|\(umask|tools/\S+|bench/\S+|build/\S+|examples/\S+) ")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
MARK = re.compile(r"<!-- test: (.*) -->")


class Block(NamedTuple):
    line: int  # of its first line
    kind: str  # the words after ```, or "" for indented lines
    text: str
    mark: str  # of the line before: <!-- test: MARK -->

    def is_shell(self) -> bool:
        return self.kind in ("sh", "bash", "console") or not self.kind and bool(
            COMMAND.match(self.text + " ") or ASSIGNMENT.match(self.text))


def blocks_of(page: str) -> List[Block]:
    blocks: List[Block] = []
    lines = page.split("\n")
    at, mark = 0, ""
    while at < len(lines):
        line, first = lines[at], at + 1
        at += 1
        if line.startswith("```"):
            end = next((i for i in range(at, len(lines)) if lines[i].startswith("```")), len(lines))
            blocks.append(Block(first + 1, line[3:], "\n".join(lines[at:end]), mark))
            at = end + 1
        elif found := re.match(r" {4,}(?=\S)(?!\d+\.|[-|])", line):
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            blocks.append(Block(first, "", "\n".join(body[found.end():] for body in lines[first - 1:at]), mark))
        elif not line:
            continue
        marked = MARK.fullmatch(line)
        mark = marked[1] if marked else ""
    return blocks
