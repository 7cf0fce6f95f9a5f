"""Communication between the GPUs of one host: measured collectives, settings of NCCL, and changes of DDP and FSDP."""
