"""vLLM's CPU worker as a pipeline stage: 0.32 leaves out the tensors that a stage receives into."""

from vllm.v1.worker.cpu_worker import CPUWorker


class PipelineWorker(CPUWorker):
    def load_model(self, **options):
        super().load_model(**options)
        runner = self.model_runner
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device)
