"""Two hosts, each with a pool and an engine of its own: what one has computed the other one takes from its pool."""

import time

from handover import right
from test_share import TOKENS, external_hits, full_blocks

def host(pools, registry, blocks=64):
    return pools(1 << 20, blocks, "--peers", f"file:{registry}", "--peer-listen", "tcp:127.0.0.1:0")


def test_an_engine_takes_a_prompt_from_the_pool_of_another_host(models, engines, pools, prompt, tmp_path):
    one, pools_of_hosts = prompt(1, TOKENS), [host(pools, tmp_path), host(pools, tmp_path)]
    alone = right(engines(models()), one)
    a, b = (engines(models(), {"pool": pool.path, "storage_wait": 5}) for pool in pools_of_hosts)
    assert a.answer([one])["tokens"][0] == alone
    pools_of_hosts[0].wait_for_blocks(full_blocks(128) // 128)
    time.sleep(6.0)  # the hosts meet within a second, and the engine looks for storage every five
    answer = b.answer([one])
    assert answer["tokens"][0] == alone
    assert external_hits(answer) == full_blocks(128), b.text()[-3000:]
    # The other host is gone, in the middle of its service: what only it had is computed.
    other = prompt(2, TOKENS)
    a.answer([other])
    pools_of_hosts[0].kill()
    answer = b.answer([other])
    assert answer["tokens"][0] == right(engines(models()), other)
