"""`python -m cachalot.example_trace` prints the path of a small trace, for a first `cachalot replay`."""

from pathlib import Path

# The first 1,000 requests of the conversation trace published with Mooncake (FAST '25), under Apache-2.0.
PATH = Path(__file__).parent / "traces" / "conversation_1000.jsonl.gz"

if __name__ == "__main__":
    print(PATH)
