"""Prefill and decode engines without a common pool: the KV goes from worker to worker."""
