"""vLLM's TieringOffloadingSpec on a machine without a GPU: all of it is vLLM's own but the worker's copies.

"kv_connector_extra_config": {"spec_name": "MemcpyTieringSpec", "spec_module_path": "memcpy_offload", …}
"""

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class MemcpyWorker(OffloadingWorker):
    """Copies at once, in the step."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self.caches, self.blocks_per_chunk, self.region = kv_caches, blocks_per_chunk, region
        self.rows = [region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk)
                     for tensor in kv_caches.tensors]
        self.finished = []

    def pairs(self, device, chunks):
        """The bytes of each page on the device, and its place in a chunk."""
        at, before = 0, 0
        for refs, count, first in zip(self.caches.group_data_refs, device.group_sizes, device.block_indices):
            skipped = first % self.blocks_per_chunk
            for i in range(count):
                chunk, place = divmod(skipped + i, self.blocks_per_chunk)
                for index in {ref.tensor_idx for ref in refs}:
                    bytes_ = self.caches.tensors[index].page_size_bytes
                    row = self.rows[index][int(chunks[before + chunk])]
                    yield (self.caches.tensors[index].tensor[int(device.block_ids[at + i])],
                           row[place * bytes_ : (place + 1) * bytes_])
            at += count
            before += -(-(skipped + count) // self.blocks_per_chunk) if count else 0

    def submit_store(self, job_id, src_spec, dst_spec):
        for page, place in self.pairs(src_spec, dst_spec.block_ids):
            place.copy_(page)
        self.finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id, src_spec, dst_spec):
        for page, place in self.pairs(dst_spec, src_spec.block_ids):
            page.copy_(place)
        self.finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        return

    def shutdown(self):
        self.rows = self.caches = None
        self.region.cleanup()


class MemcpyTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id, num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
            self._worker = MemcpyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
