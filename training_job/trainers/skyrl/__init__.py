"""SkyRL 0.3.0 as the trainer: FSDP with LoRA and colocated vLLM engines on a GPU cluster."""
