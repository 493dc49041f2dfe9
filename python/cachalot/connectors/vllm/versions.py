"""Which versions of vLLM the connector and the tier fit: tests/vllm/test_contract.py compares both."""

import re

OLDEST = (0, 30)


def check(found: str) -> None:
    """Raises ImportError: a release of vLLM before OLDEST. A development build may have any number, and is taken."""
    number = re.match(r"(\d+)\.(\d+)", found)
    if number is None or ".dev" in found:
        return
    if (int(number[1]), int(number[2])) < OLDEST:
        raise ImportError(f"cachalot.connectors.vllm: found vLLM {found}, expected {OLDEST[0]}.{OLDEST[1]} or later")
