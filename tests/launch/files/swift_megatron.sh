NNODES=2 NPROC_PER_NODE=8 \
megatron sft \
 --load Qwen3-30B-A3B-mcore --expert_model_parallel_size 8 --tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 64 --max_length 8192 --attention_backend flash
